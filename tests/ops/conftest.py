"""Operations must work for programs that forbid implicit promotion of dtypes, so all their tests do."""

from __future__ import annotations

from collections.abc import Iterator

import jax
import pytest


@pytest.fixture(autouse=True)
def strict_promotion() -> Iterator[None]:
    with jax.numpy_dtype_promotion("strict"):
        yield
