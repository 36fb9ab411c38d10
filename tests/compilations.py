"""What JAX compiles."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import jax


@contextmanager
def compilations() -> Iterator[list[str]]:
    """An event for each program that is compiled inside the context."""
    compiled = []

    def listen(event: str, duration: float, **_: object) -> None:
        compiled.append(event) if event.endswith("backend_compile_duration") else None

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield compiled
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
