"""Marks and limits of tests."""

from __future__ import annotations

from typing import Any

import pytest

HANGS = 1800
"""Seconds after which a process is taken to hang, on any machine and beside anything."""


def thorough(*cases: tuple[Any, ...]) -> list[Any]:
    """Cases of a parametrised test that plain `pytest` leaves out, and `.ci/run` runs."""
    return [pytest.param(*case, marks=pytest.mark.thorough) for case in cases]
