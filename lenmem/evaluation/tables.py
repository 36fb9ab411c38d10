"""Tables for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from lenmem.evaluation.lengths import LengthCurve
from lenmem.evaluation.metrics import is_share
from lenmem.evaluation.statistics import Summary, summarise

METRICS = ("token_accuracy", "exact_match")


def shown_metrics(curves: Sequence[LengthCurve]) -> tuple[str, ...]:
    """`METRICS`; if a task has other ones, all metrics that the curves share. ValueError if they share none."""
    common = [name for name in curves[0].values if all(name in curve.values for curve in curves)]
    if not common:
        raise ValueError(f"the curves share no metric; they have {'; '.join(', '.join(c.values) for c in curves)}")
    return METRICS if set(METRICS) <= set(common) else tuple(common)


def curve_table(curves: Sequence[LengthCurve], *, metrics: Sequence[str] | None = None, rows: int = 20) -> Table:
    """Length x metric, the median and the range over seeds, shares in percent, one group of columns per curve.

    The metrics are those of `shown_metrics`, if none are given.

    The lengths on which all curves were trained are marked. With more than `rows` lengths an evenly spaced selection is
    shown, which includes the ends of the training and test ranges and of the curve; the caption mentions it, and also
    if no length is beyond training. NaN (all seeds of a curve diverged, or the curve lacks a length) is shown as a
    dash. If a task is ambiguous, the last column is the best possible token accuracy. If all curves have the same
    lengths, the last row is their mean over all lengths beyond training (`LengthCurve.mean_beyond`).
    """
    if not curves:
        raise ValueError("no curves given; a table needs at least one")
    metrics = shown_metrics(curves) if metrics is None else metrics
    check_metrics(curves, metrics)
    first, last = _common_train_lengths(curves)
    lengths = np.unique(np.concatenate([curve.lengths for curve in curves]))
    shown = _selection(lengths, [end for curve in curves for end in _ends(curve)], rows)

    several = max(curve.seeds for curve in curves) > 1
    samples = sorted({curve.samples for curve in curves})
    caption = [f"{_span(samples)} samples per length"]
    if several:
        caption.insert(0, f"median of {_span(sorted({curve.seeds for curve in curves}))} seeds (lowest - highest)")
        caption += [
            f"{died} seeds of {escape(curve.label) or 'these'} diverged" for curve in curves if (died := _died(curve))
        ]
    if len({curve.train_lengths for curve in curves}) > 1:
        caption.append(f"training lengths are {_train_lengths(curves)}")
    if lengths[-1] <= last:
        caption.append("no length beyond training")
    if len(shown) < len(lengths):
        caption.append(f"{len(shown)} of {len(lengths)} lengths shown")
    table = Table(caption=", ".join(caption), caption_justify="left")
    table.add_column("length", justify="right")
    table.add_column("")
    for curve in curves:
        for metric in metrics:
            name = heading(metric)
            table.add_column(f"{escape(curve.label)}\n{name}" if curve.label else name, justify="right")
    ceilings = {
        length: ceiling
        for curve in curves
        if curve.ceiling is not None
        for length, ceiling in zip(curve.lengths.tolist(), curve.ceiling, strict=True)
    }
    if ceilings:
        table.add_column("possible\ntoken accuracy %", justify="right")
    summaries = [{metric: summarise(curve.values[metric]) for metric in metrics} for curve in curves]
    for length in shown:
        trained = first <= length <= last
        cells = []
        for curve, summary in zip(curves, summaries, strict=True):
            (index,) = np.nonzero(curve.lengths == length)
            for metric in metrics:
                cells.append(_cell(metric, summary[metric], index[0], several) if index.size else "-")
        if ceilings:
            cells.append(percent(ceilings.get(int(length), np.nan)))
        following = lengths[lengths > length]
        table.add_row(
            str(length),
            "train" if trained else "",
            *cells,
            style="cyan" if trained else None,
            end_section=not following.size or bool(trained and not first <= following[0] <= last),
        )
    if _have_means(curves):
        means = [(metric, summarise(curve.mean_beyond(metric))) for curve in curves for metric in metrics]
        table.add_row("mean", "beyond", *(_cell(metric, mean, (), several) for metric, mean in means))
    return table


def comparison_table(curves: Sequence[LengthCurve], *, metric: str = "token_accuracy", columns: int = 14) -> Table:
    """Models x lengths: the metric of the median seed, in percent. For many models; `curve_table` is for few.

    With more than `columns` lengths an evenly spaced selection is shown, and the last column is the mean beyond
    training, as in `curve_table`.
    """
    if not curves:
        raise ValueError("no curves given; a table needs at least one")
    check_metrics(curves, [metric])
    lengths = np.unique(np.concatenate([curve.lengths for curve in curves]))
    shown = _selection(lengths, [end for curve in curves for end in _ends(curve)], columns)
    first, last = _common_train_lengths(curves)
    title = f"{heading(metric)} by length; training lengths are {_train_lengths(curves)}"
    table = Table(caption=title, caption_justify="left")
    table.add_column("model")
    for length in shown:
        table.add_column(str(length), justify="right", style="cyan" if first <= length <= last else None)
    averages = _have_means(curves)
    if averages:
        table.add_column("mean\nbeyond", justify="right")
    for curve in curves:
        medians = dict(zip(curve.lengths.tolist(), summarise(curve.values[metric]).median, strict=True))
        cells = [written(metric, medians.get(int(length), np.nan)) for length in shown]
        if averages:
            cells.append(written(metric, summarise(curve.mean_beyond(metric)).median))
        table.add_row(escape(curve.label), *cells)
    return table


def tables_that_fit(curves: Sequence[LengthCurve], console: Console) -> list[Table]:
    """Curves side by side if they fit the console; otherwise, for each metric, a table of models x lengths that
    fits."""
    wide = console.options.update_width(10_000)

    def fits(table: Table) -> bool:
        return Measurement.get(console, wide, table).maximum <= console.width

    if fits(table := curve_table(curves)):
        return [table]
    found = []
    for metric in shown_metrics(curves):
        tables = (comparison_table(curves, metric=metric, columns=columns) for columns in range(14, 1, -1))
        found.append(next(filter(fits, tables), comparison_table(curves, metric=metric, columns=2)))
    return found


def cross_table(cells: Mapping[tuple[str, str], LengthCurve | str], *, metric: str | None = None) -> Table:
    """Models x tasks: the metric inside / beyond the training lengths, or the reason why there is none.

    `cells` maps (model, task) to a curve or to a line of text. Inside, a curve is averaged over the measured lengths,
    beyond by `LengthCurve.mean_beyond`, for every seed; the median seed is shown, in percent. The default metric is
    exact match, or the first metric of a task without it.
    """
    models, tasks = grid(cells)
    curves = [cell for cell in cells.values() if isinstance(cell, LengthCurve)]
    names = [metric] if metric else list(dict.fromkeys(map(_main_metric, curves))) or ["exact_match"]
    table = Table(
        caption=f"{' or '.join(names).replace('_', ' ')} at training lengths / beyond, mean over lengths, median seed",
        caption_justify="left",
    )
    table.add_column("model")
    for task in tasks:
        table.add_column(escape(task))
    for model in models:
        table.add_row(escape(model), *(_cross_cell(cells.get((model, task), ""), metric) for task in tasks))
    return table


def grid(cells: Mapping[tuple[str, str], object]) -> tuple[list[str], list[str]]:
    """The models and the tasks of a cross table, in order of appearance."""
    if not cells:
        raise ValueError("no cells given; a cross table needs at least one")
    return list(dict.fromkeys(model for model, _ in cells)), list(dict.fromkeys(task for _, task in cells))


def _main_metric(curve: LengthCurve) -> str:
    return "exact_match" if "exact_match" in curve.values else next(iter(curve.values))


def _cross_cell(cell: LengthCurve | str, metric: str | None) -> str | Text:
    if isinstance(cell, str):
        return Text(cell, style="dim")
    metric = metric or _main_metric(cell)
    check_metrics([cell], [metric])
    means = [
        cell.values[metric][:, cell.trained].mean(axis=1) if cell.trained.any() else None,
        cell.mean_beyond(metric) if cell.beyond.any() else None,
    ]
    return " / ".join("-" if mean is None else written(metric, summarise(mean).median) for mean in means)


def _have_means(curves: Sequence[LengthCurve]) -> bool:
    """Whether means beyond training are over the same lengths in all curves, and over more than one."""
    first, *others = curves
    same = all(
        curve.train_lengths == first.train_lengths and np.array_equal(curve.lengths, first.lengths) for curve in others
    )
    return same and int(first.beyond.sum()) > 1


def check_metrics(curves: Sequence[LengthCurve], metrics: Sequence[str]) -> None:
    """ValueError if a curve lacks one of the metrics."""
    for curve in curves:
        for metric in metrics:
            if metric not in curve.values:
                raise ValueError(
                    f"unknown metric {metric!r}; {curve.label or 'the curve'} has {', '.join(curve.values)}"
                )


def _common_train_lengths(curves: Sequence[LengthCurve]) -> tuple[int, int]:
    """The first and last length on which all curves were trained; the first is the larger one if there is none."""
    firsts, lasts = zip(*(curve.train_lengths for curve in curves), strict=True)
    return max(firsts), min(lasts)


def _train_lengths(curves: Sequence[LengthCurve]) -> str:
    """`2 to 32`, or, if they differ, `2 to 32 of wide, 2 to 16 of narrow`."""
    ranges = [f"{first} to {last}" for first, last in (curve.train_lengths for curve in curves)]
    if len(set(ranges)) == 1:
        return ranges[0]
    return ", ".join(f"{span} of {escape(curve.label)}" for span, curve in zip(ranges, curves, strict=True))


def _ends(curve: LengthCurve) -> list[int]:
    """Lengths that a table should always include."""
    return [curve.lengths[0], curve.lengths[-1], *curve.train_lengths, *(curve.test_lengths or ())]


def _selection(lengths: np.ndarray, ends: Sequence[int], rows: int) -> np.ndarray:
    """About `rows` of the ascending lengths, evenly spaced, including all `ends` that occur."""
    if len(lengths) <= rows:
        return lengths
    kept = set(np.intersect1d(lengths, ends).tolist())
    even = lengths[np.linspace(0, len(lengths) - 1, max(rows - len(kept), 0)).round().astype(int)]
    return np.array(sorted(kept.union(even.tolist())))


def _cell(metric: str, summary: Summary, index: int | tuple[()], several: bool) -> str:
    median, low, high = (written(metric, value[index]) for value in (summary.median, summary.low, summary.high))
    return spread(median, low, high) if several else median


def heading(metric: str) -> str:
    """The name of a metric above its values as `written`."""
    return metric.replace("_", " ") + (" %" if is_share(metric) else "")


def written(metric: str, value: float | np.ndarray) -> str:
    """A value of a metric as text, in percent if it is a share."""
    return percent(value) if is_share(metric) or np.isnan(value) else f"{float(value):.4g}"


def spread(shown: str, least: str, most: str) -> str:
    """`50.0  (25.0 - 75.0)`: a value and its range; the value alone if the others are equal."""
    return shown if least == most else f"{shown}  ({least} - {most})"


def percent(value: float | np.ndarray) -> str:
    """One decimal, but '100.0' only for 1, up to rounding in float32; '-' for NaN."""
    value = float(value)
    if np.isnan(value):
        return "-"
    return f"{100 * (1.0 if value > 1 - 1e-7 else min(value, 0.999)):.1f}"


def _died(curve: LengthCurve) -> int:
    """Number of seeds that are NaN everywhere."""
    return int(np.sum(np.all([np.isnan(values).all(axis=1) for values in curve.values.values()], axis=0)))


def _span(numbers: Sequence[int]) -> str:
    return str(numbers[0]) if numbers[0] == numbers[-1] else f"{numbers[0]}-{numbers[-1]}"
