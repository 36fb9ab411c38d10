"""Evaluation of trained models: accuracy by length, statistics over seeds, tables, pictures, traces."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lenmem import lazy

if TYPE_CHECKING:
    from lenmem.evaluation import lengths, metrics, plots, sets, states, statistics, tables, traces
else:
    __getattr__, __dir__ = lazy.attach(__name__)

__all__ = ["lengths", "metrics", "plots", "sets", "states", "statistics", "tables", "traces"]
