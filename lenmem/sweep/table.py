"""The table of a sweep, its picture, and the choice of the best combination."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich.markup import escape
from rich.table import Table

from lenmem.evaluation.metrics import SMALLER_IS_BETTER
from lenmem.evaluation.statistics import summarise
from lenmem.evaluation.tables import heading, written
from lenmem.experiment import Experiment
from lenmem.sweep.combinations import Outcome, as_typed, short_names


def rule(experiment: Experiment) -> str:
    """The selection rule of the best combination, as text."""
    training = experiment.training
    metric, split = training.selection_metric.replace("_", " "), training.scored_split
    extreme = "smallest" if training.selection_metric in SMALLER_IS_BETTER else "highest"
    ties = "" if training.selection_metric == "loss" else "; ties by the smallest loss"
    return f"the {extreme} {metric} on the split {split}, median over seeds{ties}"


def best(outcomes: Sequence[Outcome]) -> Outcome:
    """The best outcome by `rule`. A diverged seed counts as the worst possible value."""
    metric = outcomes[0].combination.experiment.training.selection_metric
    sign = -1 if metric in SMALLER_IS_BETTER else 1

    def median(outcome: Outcome, name: str, worst: float) -> float:
        values = outcome.scores.get(name)
        return worst if values is None else float(np.median(np.where(np.isnan(values), worst, values)))

    def rank(outcome: Outcome) -> tuple[float, float]:
        return sign * median(outcome, metric, -sign * np.inf), -median(outcome, "loss", np.inf)

    return max(outcomes, key=rank)


def columns(outcome: Outcome) -> dict[str, np.ndarray]:
    """The columns of an outcome in the table: title -> float[S]."""
    experiment, curve = outcome.combination.experiment, outcome.curve
    found = {f"{experiment.training.scored_split} {name}": values for name, values in outcome.scores.items()}
    if curve is None:
        return found
    if curve.trained.any():
        at = {name: values[:, curve.trained].mean(axis=1) for name, values in curve.values.items()}
        found |= {f"{name} at training lengths": mean for name, mean in at.items()}
    if curve.beyond.any():
        found |= {f"{name} beyond": curve.mean_beyond(name) for name in curve.values}
    return found


def save_table(outcomes: Sequence[Outcome], directory: Path) -> None:
    """Writes `sweep.csv`, with a line for each combination and medians over its alive seeds, and `sweep.png`, with a
    dot for each seed."""
    from lenmem.evaluation.plots import plot_sweep

    chosen = best(outcomes)
    cells = [columns(outcome) for outcome in outcomes]
    titles = list(dict.fromkeys(title for row in cells for title in row))
    with open(directory / "sweep.csv", "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        names = short_names(outcomes[0].combination.values)
        writer.writerow([*names.values(), "run", "best", "seeds alive", *(title.replace(" ", "_") for title in titles)])
        for outcome, row in zip(outcomes, cells, strict=True):
            values = [as_typed(value) for value in outcome.combination.values.values()]
            medians = [f"{float(summarise(row[title]).median):.6g}" if title in row else "nan" for title in titles]
            writer.writerow([*values, outcome.combination.name, int(outcome is chosen), _alive(outcome), *medians])
    seeds = outcomes[0].combination.experiment.training.seeds
    dead = np.full(seeds, np.nan)
    panels = {
        title: [row.get(title, dead) for row in cells]
        for title in titles
        if not title.endswith("token_accuracy beyond")
    }
    labels = [outcome.combination.name for outcome in outcomes]
    plot_sweep(labels, panels, directory / "sweep.png", best=outcomes.index(chosen))


def sweep_table(outcomes: Sequence[Outcome]) -> Table:
    """The combinations with medians over their alive seeds, accuracies in percent. The best is marked."""
    chosen = best(outcomes)
    cells = [columns(outcome) for outcome in outcomes]
    titles = list(dict.fromkeys(title for row in cells for title in row))
    table = Table(caption=f"best: {rule(outcomes[0].combination.experiment)}", caption_justify="left")
    for name in short_names(outcomes[0].combination.values).values():
        table.add_column(escape(name), justify="right")
    for title in titles:
        table.add_column(escape(heading(title)), justify="right")
    table.add_column("alive", justify="right")
    table.add_column("")
    for outcome, row in zip(outcomes, cells, strict=True):
        medians = []
        for title in titles:
            value = float(summarise(row[title]).median) if title in row else np.nan
            medians.append(written(title, value))
        values = [escape(as_typed(value)) for value in outcome.combination.values.values()]
        table.add_row(*values, *medians, _alive(outcome), "best" if outcome is chosen else "")
    return table


def living(outcome: Outcome) -> int:
    """Number of alive seeds."""
    return int(np.sum(~np.isnan(outcome.scores.get("loss", np.nan))))


def _alive(outcome: Outcome) -> str:
    return f"{living(outcome)}/{outcome.combination.experiment.training.seeds}"
