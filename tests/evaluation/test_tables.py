"""Tables for the terminal, read back as text."""

from __future__ import annotations

import dataclasses
import io

import numpy as np
import pytest
from rich.console import Console

from lenmem.evaluation.lengths import LengthCurve
from lenmem.evaluation.tables import comparison_table, cross_table, curve_table, percent, tables_that_fit


def make(values, lengths=None, label="lantm", **kwargs) -> LengthCurve:
    """A curve with token accuracy `values` [S, L] and half that exact match."""
    values = np.asarray(values, dtype=np.float64)
    lengths = np.arange(1, values.shape[1] + 1) if lengths is None else np.asarray(lengths)
    return LengthCurve(
        label,
        lengths,
        {"token_accuracy": values, "exact_match": values / 2},
        **{"train_lengths": (1, 2), "samples": 8} | kwargs,
    )


def text(table) -> str:
    file = io.StringIO()
    Console(width=160, file=file, color_system=None).print(table)
    return file.getvalue()


def rows(table) -> list[list[str]]:
    return [
        [cell.strip() for cell in line.strip("│").split("│")]
        for line in text(table).splitlines()
        if line.startswith("│")
    ]


def test_median_and_range():
    table = curve_table([make([[1, 0.5, 0.2], [1, 0.75, 0.4], [1, 0.7, np.nan]])])
    assert rows(table) == [
        ["1", "train", "100.0", "50.0"],
        ["2", "train", "70.0  (50.0 - 75.0)", "35.0  (25.0 - 37.5)"],
        ["3", "", "30.0  (20.0 - 40.0)", "15.0  (10.0 - 20.0)"],
    ]
    assert "median of 3 seeds (lowest - highest), 8 samples per length" in text(table)
    assert not any(words in text(table) for words in ("shown", "no length beyond"))


def test_curves_that_end_with_the_training_lengths_are_said_to():
    assert "8 samples per length, no length beyond training" in text(curve_table([make([[1, 0.5]])]))
    other = make([[1, 0.5]], train_lengths=(1, 1))
    assert "no length beyond" not in text(curve_table([make([[1, 0.5]]), other]))


def test_the_mean_beyond_training_is_the_last_row():
    """Over all lengths 3 .. 7, interpolated, for each seed."""
    curve = make([[1, 1, 0.8, 0.4, 0.2], [1, 1, 0.5, 0.5, 0.5], [1, 1, 0.7, 0.3, 0.0]], lengths=[1, 2, 3, 5, 7])
    means = curve.mean_beyond()
    assert rows(curve_table([curve], metrics=["token_accuracy"]))[-1] == ["mean", "beyond", "46.0  (33.0 - 50.0)"]
    np.testing.assert_allclose(means, [0.46, 0.5, 0.33])
    assert rows(comparison_table([curve, curve]))[0][-1] == "46.0"
    assert "mean" not in text(curve_table([curve, make([[1, 1, 0.8]])]))  # means over other lengths


def test_many_models_are_rows():
    curves = [make([[1, 0.5, 0.2], [1, 0.75, 0.4]], label="[a]"), make([[0.5, 0.25]], lengths=[3, 4], label="b")]
    table = comparison_table(curves)
    assert rows(table) == [["[a]", "100.0", "62.5", "30.0", "-"], ["b", "-", "-", "50.0", "25.0"]]
    assert "token accuracy % by length; training" in text(table)
    halves = rows(comparison_table(curves[:1], metric="exact_match", columns=2))
    assert halves == [["[a]", "50.0", "31.2", "15.0"]]  # the ends of training and curve are always shown
    with pytest.raises(ValueError, match="unknown metric 'loss'"):
        comparison_table(curves, metric="loss")


def test_an_ambiguous_task_shows_what_is_possible():
    curve = make([[0.5, 0.25]], lengths=[2, 4], ceiling=np.array([0.75, 0.5]))
    assert [row[-1] for row in rows(curve_table([curve], metrics=["token_accuracy"]))] == ["75.0", "50.0"]
    other = make([[0.5]], lengths=[8])
    shown = rows(curve_table([curve, other], metrics=["token_accuracy"]))
    assert [row[-1] for row in shown] == ["75.0", "50.0", "-"]
    assert LengthCurve.from_dict(curve.to_dict()).ceiling == pytest.approx([0.75, 0.5])
    assert LengthCurve.from_dict(other.to_dict()).ceiling is None


def test_curves_of_different_lengths():
    table = curve_table(
        [
            make([[1, 0.5]]),
            make(
                [
                    [0.25],
                ],
                [3],
                label="[b]",
            ),
        ],
        metrics=["token_accuracy"],
    )
    assert rows(table) == [["1", "train", "100.0", "-"], ["2", "train", "50.0", "-"], ["3", "", "-", "25.0"]]
    assert "[b]" in text(table)
    assert "median" not in text(table)


@pytest.mark.parametrize("order", [1, -1])
def test_curves_of_different_trainings(order):
    """A length counts as trained if it was for every curve."""
    wide = make([[1, 0.5, 0.25]], label="[wide]", train_lengths=(1, 3))
    narrow = make([[1, 0.5, 0.25]], label="narrow", train_lengths=(1, 2))
    curves = [wide, narrow][::order]
    said = ["1 to 3 of [wide]", "1 to 2 of narrow"][::order]
    table = curve_table(curves)
    assert [row[1] for row in rows(table)] == ["train", "train", ""]
    assert f"training lengths are {', '.join(said)}" in text(table)
    assert f"training lengths are {', '.join(said)}" in " ".join(text(comparison_table(curves)).split())
    assert [column.style for column in comparison_table(curves).columns[1:]] == ["cyan", "cyan", ""]


def test_many_lengths_are_thinned():
    curve = make(np.ones((2, 100)), np.arange(3, 103), train_lengths=(5, 17), test_lengths=(19, 96))
    table = curve_table([curve])
    *shown, mean = rows(table)
    assert mean[:3] == ["mean", "beyond", "100.0"]
    shown = [int(row[0]) for row in shown]
    assert len(shown) <= 20
    assert {3, 5, 17, 19, 96, 102} <= set(shown)
    assert max(np.diff(shown)) <= 12
    assert f"{len(shown)} of 100 lengths shown" in text(table)


def test_cross_table():
    cells = {
        ("lantm", "copy"): make([[1, 1, 0.5], [1, 1, 0.7], [1, 1, 0.9]]),
        ("lantm", "dyck"): "needs [causal] models",
        ("lstm", "copy"): make([[1, 0.5]]),
    }
    table = cross_table(cells, metric="token_accuracy")
    assert rows(table) == [["lantm", "100.0 / 70.0", "needs [causal] models"], ["lstm", "75.0 / -", ""]]


def test_a_cross_table_averages_trained_lengths_alone_and_interpolates_beyond():
    """Lengths shorter than those of training are left out; 6, 7 and 8 were not measured."""
    curve = make([[0, 1, 0.5, 0.8, 0.6, 0.2]], lengths=[1, 2, 3, 4, 5, 9], train_lengths=(2, 3))
    assert rows(cross_table({("lantm", "copy"): curve}, metric="token_accuracy")) == [["lantm", "75.0 / 46.7"]]


def test_metrics_of_another_task():
    """A task without token accuracy and exact match is shown by its own metrics."""
    curve = make([[1, 0.5, 0.25]])
    own = dataclasses.replace(curve, values={"score": curve.values["token_accuracy"]})
    assert [row[2:] for row in rows(curve_table([own]))] == [["100.0"], ["50.0"], ["25.0"]]
    assert "score %" in text(curve_table([own]))
    (table,) = tables_that_fit([own, own], Console(width=200, file=io.StringIO()))
    assert rows(table)[0][2:] == ["100.0", "100.0"]
    table = cross_table({("lantm", "own"): own, ("lantm", "copy"): curve})
    assert rows(table) == [["lantm", "75.0 / 25.0", "37.5 / 12.5"]]
    assert "score or exact match at training" in text(table)
    with pytest.raises(ValueError, match="share no metric; they have score; token_accuracy, exact_match"):
        curve_table([own, curve])


def test_a_perplexity_is_no_percentage():
    curve = make([[1, 0.5, 0.25]])
    own = dataclasses.replace(curve, values={"perplexity": 10 * curve.values["token_accuracy"]})
    table = curve_table([own], metrics=["perplexity"])
    assert [row[2:] for row in rows(table)] == [["10"], ["5"], ["2.5"]]
    assert "perplexity" in text(table) and "%" not in text(table)
    assert rows(comparison_table([own], metric="perplexity")) == [["lantm", "10", "5", "2.5"]]
    assert rows(cross_table({("lantm", "own"): own})) == [["lantm", "7.5 / 2.5"]]


def test_percent_does_not_round_up_to_all():
    assert [percent(x) for x in (1.0, 0.9999, 0.9984, 0.0, np.nan)] == ["100.0", "99.9", "99.8", "0.0", "-"]


def test_nothing_to_show():
    with pytest.raises(ValueError, match="no curves"):
        curve_table([])
    with pytest.raises(ValueError, match="no cells"):
        cross_table({})
    with pytest.raises(ValueError, match="unknown metric 'f1'; lantm has token_accuracy, exact_match"):
        curve_table([make([[1.0]])], metrics=["f1"])


@pytest.mark.parametrize(("curves", "width", "tables"), [(1, 80, 1), (2, 80, 2), (2, 130, 1), (7, 80, 2)])
def test_tables_fit_the_terminal(curves, width, tables):
    values = np.linspace(1, 0, 3 * 40).reshape(3, 40)
    named = [make(values, label=f"transformer_randomized_{number}") for number in range(curves)]
    console = Console(width=width, file=io.StringIO(), color_system=None)
    shown = tables_that_fit(named, console)
    assert len(shown) == tables
    for table in shown:
        console.print(table)
    printed = console.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]
    assert "…" not in printed
    assert max(map(len, printed.splitlines())) <= width
    assert all(curve.label in printed for curve in named)
