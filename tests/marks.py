"""Marks and limits of tests. What runs when, by the marks of a test:

none                      plain `pytest`
thorough                  `.ci/run slow`, for every change
learning, thorough        `.ci/run processor`, for every change; `learning` alone: there and in plain `pytest`
slow, also with others    `.ci/run slow` and `.ci/run docs` those of a few files, `.ci/run weekly` all others
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

HANGS = 1800
"""Seconds after which a process is taken to hang, on any machine and beside anything."""

FLAGSHIPS = frozenset({"lantm", "ndr", "nam_tm", "dnc", "panm", "transformer", "lstm"})
"""Networks that are checked in every run of the suite. `.ci/run` also checks the others, except for those in `VARIANTS`
of `tests/models/test_contract.py`, which are marked slow: `.ci/run weekly` checks them."""


def often(names: Iterable[str], always: Iterable[str] = FLAGSHIPS) -> list[Any]:
    """Names as cases of a parametrised test, of which plain `pytest` runs those in `always`, and `.ci/run` all."""
    return [pytest.param(name, marks=[] if name in always else pytest.mark.thorough) for name in names]


def thorough(*cases: tuple[Any, ...]) -> list[Any]:
    """Cases of a parametrised test that plain `pytest` leaves out, and `.ci/run` runs."""
    return [pytest.param(*case, marks=pytest.mark.thorough) for case in cases]
