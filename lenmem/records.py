"""Records of measured rows, `results/<paper>/<row>.json` with a file of parameters, and their table.

Records are never written by hand.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jax
import numpy as np
from rich.markup import escape
from rich.table import Table

from lenmem import papers
from lenmem.evaluation.metrics import is_share
from lenmem.evaluation.tables import percent
from lenmem.experiment import Experiment
from lenmem.files import as_json, make_directory, read_json, write_whole
from lenmem.serialize import to_plain
from lenmem.share import export_params
from lenmem.training.resume import code_of, same_experiment
from lenmem.types import PyTree

SHARED_PARAMETERS = 500_000
"""Most parameters, summed over seeds, that are stored with a record."""


def save_record(target: Path, record: Mapping[str, Any], params: PyTree | None) -> None:
    """Writes a record, and the parameters next to it unless they are None or more than `SHARED_PARAMETERS`."""
    text = as_json(record)  # before the parameters of an earlier record are replaced
    make_directory(target.parent)
    file = target.with_suffix(".safetensors")
    if params is not None and sum(x.size for x in jax.tree.leaves(params)) <= SHARED_PARAMETERS:
        export_params(file, params, {"experiment": record["experiment"], "alive": record["alive"]})
    else:
        file.unlink(missing_ok=True)  # those of an earlier record
    write_whole(target, text)


def origin_of(experiment: Experiment) -> dict[str, str]:
    """The hashes of the data file and of the user's own code, where there are any: the part of a record about them."""
    found = {"data": experiment.task.data_hash, "code": code_of(experiment)}
    return {name: value for name, value in found.items() if value is not None}


def recorded(
    path: Path,
    experiment: Experiment,
    after_training: Mapping[str, Any] | None = MappingProxyType({}),
    cell: Mapping[str, Any] = MappingProxyType({}),
) -> dict[str, Any] | None:
    """The record of exactly this experiment, with this data file and code, or None. Fields that were added after it was
    written count as defaults, and what an older record lacks as equal.

    `after_training`: the fields that were changed after training. None: any. `cell`: `Row.cell`.
    """
    if not path.exists():
        return None
    try:
        record = read_json(path)
        same = same_experiment(record["experiment"], experiment)
        if after_training is not None:
            same = same and record.get("after_training", {}) == to_plain(dict(after_training))
        if same:
            wanted = to_plain({**cell, **origin_of(experiment)})
            same = all(record.get(name, value) == value for name, value in wanted.items())
    except (ValueError, KeyError, TypeError):
        return None
    return record if same else None


def best_seed(record: Mapping[str, Any]) -> int:
    """The seed that is best in the first of its `ranked_metrics`; ties are broken by the others."""
    names = ranked_metrics(record)
    seeds = zip(*(record["measured"][name]["seeds"] for name in names), strict=True)
    signs = [1 if is_share(name) else -1 for name in names]
    # A diverged seed has None everywhere, which sorts below every number.
    ranks = [tuple(-np.inf if x is None else sign * x for sign, x in zip(signs, of, strict=True)) for of in seeds]
    return max(range(len(ranks)), key=lambda seed: ranks[seed])


def ranked_metrics(record: Mapping[str, Any]) -> list[str]:
    """The metrics of a record: exact match, if measured, then those that are compared with the paper, then the rest."""
    compared = compared_metrics([record])
    return sorted(record["measured"], key=lambda name: (name != "exact_match", name not in compared))


def results_table(records: Sequence[Mapping[str, Any]]) -> Table:
    """Compares records with the paper: for every row the median over seeds, the best seed, and the printed number.

    Several metrics are joined by slashes, in the order of the caption. The numbers of the best seed are all of the same
    seed (`best_seed`). If the paper prints means and standard deviations, there is a column with ours. A dash denotes
    diverged seeds and numbers that are not printed.
    """
    if not records:
        raise ValueError("no records given; a table needs at least one")
    compared = compared_metrics(records)
    rules = ", ".join(sorted({record["selection"] for record in records}))
    names = " / ".join(map(metric_name, compared))
    table = Table(caption=f"{names}{unit(records[0])}; parameters kept: {rules}", caption_justify="left")
    table.add_column("row")
    stated = [papers.find(record["paper"], record["table"], **record["where"]) for record in records]
    with_mean = any(
        printed.get(f"{column}_std", printed.get("std")) is not None
        for record, printed in zip(records, stated, strict=True)
        for column in record.get("metrics", {}).values()
    )
    for column in ("median", *(("mean ± std",) if with_mean else ()), "best seed", "paper", "seeds"):
        table.add_column(column, justify="right")
    for record in records:
        best = best_seed(record)
        cells = [record["measured"].get(metric) for metric in compared]
        table.add_row(
            escape(record["row"]),
            " / ".join("-" if cell is None else shown(cell["median"]) for cell in cells),
            *(
                (" / ".join("-" if cell is None else mean_and_std(cell["seeds"]) for cell in cells),)
                if with_mean
                else ()
            ),
            " / ".join("-" if cell is None else shown(cell["seeds"][best]) for cell in cells),
            " / ".join("-" if cell is None or cell["paper"] is None else f"{cell['paper']:g}" for cell in cells),
            str(len(record["alive"])),
        )
    return table


def mean_and_std(seeds: Sequence[float | None]) -> str:
    """`85.2 ± 1.9`: mean and sample standard deviation (with n - 1) of the seeds that did not diverge."""
    living = [value for value in seeds if value is not None]
    if not living:
        return "-"
    return shown(float(np.mean(living))) + (f" ± {np.std(living, ddof=1):.1f}" if len(living) > 1 else "")


def compared_metrics(records: Iterable[Mapping[str, Any]]) -> list[str]:
    """The metrics that the rows compare with the paper, in order; if there are none, those that it prints, or all."""
    records = list(records)
    named = [metric for record in records for metric in record.get("metrics", ())]
    items = [(metric, cell["paper"]) for record in records for metric, cell in record["measured"].items()]
    printed = [metric for metric, value in items if value is not None]
    return list(dict.fromkeys(named or printed or [metric for metric, _ in items]))


def unit(record: Mapping[str, Any]) -> str:
    """The unit of the record's table in the paper, to be appended to the names of metrics."""
    printed = papers.tables(record["paper"])[record["table"]]["unit"]
    return ", in percent" if printed == "percent" else f" ({printed})"


def metric_name(metric: str) -> str:
    """The name of a metric in a table: `exact match`, or `exact match on od_easy` for another split than the test."""
    split, _, name = metric.rpartition("/")
    return name.replace("_", " ") + (f" on {split}" if split else "")


def shown(value: float | None) -> str:
    """A percentage or a length with one decimal, but '100.0' only for exactly 100; a dash for None."""
    if value is not None and value > 100:  # a length
        return f"{value:.1f}"
    return "-" if value is None else percent(value / 100)
