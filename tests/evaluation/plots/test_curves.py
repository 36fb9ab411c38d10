"""Pictures of curves are drawn without warnings or global state, and show the given numbers."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from matplotlib.ticker import PercentFormatter

from lenmem.evaluation import plots
from lenmem.evaluation.lengths import LengthCurve


def make(label="lantm", seeds=3, lengths=range(1, 20), **kwargs) -> LengthCurve:
    lengths = np.asarray(list(lengths))
    values = np.clip(1.2 - lengths / 20 + np.arange(seeds)[:, None] / 10, 0, 1)
    return LengthCurve(
        label,
        lengths,
        {"token_accuracy": values, "exact_match": values**2},
        **{"train_lengths": (1, 8), "samples": 8} | kwargs,
    )


def is_png(path) -> bool:
    return path.read_bytes().startswith(b"\x89PNG")


def test_curves_show_medians_and_ranges(tmp_path):
    curve = make()
    figure = plots.plot_curves([curve, make("costs $5 $6", lengths=[1, 2, 4, 8])], tmp_path / "curve.png")
    assert is_png(tmp_path / "curve.png")
    for ax, metric in zip(figure.axes, ("token_accuracy", "exact_match"), strict=True):
        assert ax.get_xlabel() == "length"
        assert ax.get_title(loc="left") == metric.replace("_", " ")
        line = ax.lines[0]
        np.testing.assert_array_equal(line.get_xdata(), curve.lengths)
        np.testing.assert_allclose(line.get_ydata(), np.median(curve.values[metric], axis=0))
        band = ax.collections[0].get_paths()[0].vertices
        at_one = band[band[:, 0] == 12][:, 1]
        np.testing.assert_allclose([at_one.min(), at_one.max()], np.sort(curve.at(12)[metric])[[0, -1]])
    labels = [entry.get_text() for entry in figure.legends[0].get_texts()]
    assert labels == ["lantm", r"costs \$5 \$6", "lowest to highest of 3 seeds", "training lengths 1 to 8"]


def test_a_perplexity_is_no_percentage():
    curve = make()
    own = dataclasses.replace(curve, values={"perplexity": 30 * curve.values["token_accuracy"]})
    (ax,) = plots.plot_curves([own], metric="perplexity").axes
    assert ax.get_ylim()[1] > 1.03 and not isinstance(ax.yaxis.get_major_formatter(), PercentFormatter)


@pytest.mark.parametrize(
    "curve",
    [
        make(seeds=1),
        make(lengths=[7]),
        make(lengths=[1, 2, 4, 8, 16, 32, 64, 128]),
        LengthCurve("dead", np.arange(1, 4), {"token_accuracy": np.full((2, 3), np.nan)}, (1, 2), 8),
    ],
    ids=["one seed", "one length", "far", "dead"],
)
def test_unusual_curves(tmp_path, curve):
    plots.plot_curves([curve], tmp_path / "a.png", metric=["token_accuracy"])
    assert is_png(tmp_path / "a.png")


@pytest.mark.parametrize("count", [8, 9, 13])
def test_no_panel_has_two_lines_alike(count):
    curves = [make(str(i), seeds=2, task="copy", unit="tokens") for i in range(count)]
    figure = plots.plot_curves(curves)
    panels = [ax for ax in figure.axes if ax.lines]
    assert len(panels) == (2 if count <= 8 else count)
    for ax in panels:
        looks = [(line.get_color(), line.get_marker()) for line in ax.lines]
        assert len(looks) == len({color for color, _ in looks}) == len({marker for _, marker in looks}) <= 8
    assert figure.get_suptitle() == "copy"
    assert panels[-1].get_xlabel() == "length (tokens)"


def test_curves_of_several_tasks_are_told_apart():
    figure = plots.plot_curves([make(task="copy"), make(task="reverse")])
    assert [text.get_text() for text in figure.legends[0].get_texts()][:2] == ["lantm, copy", "lantm, reverse"]
    assert plots.plot_curves([make(task="copy")]).get_suptitle() == "lantm on copy"


def test_cross_table(tmp_path):
    cells = {("lantm", "copy"): make(), ("lstm", "dyck"): "not causal", ("lstm", "copy"): make(seeds=1)}
    figure = plots.plot_cross_table(cells, tmp_path / "cross.svg")
    assert (tmp_path / "cross.svg").exists()
    assert [ax.get_title() for ax in figure.axes] == ["copy", "dyck", "", ""]
    assert [ax.get_ylabel() for ax in figure.axes] == ["lantm", "", "lstm", ""]
    assert figure.axes[3].texts[0].get_text() == "not causal"


def test_metrics_of_another_task():
    own = dataclasses.replace(make(), values={"score": make().values["exact_match"]})
    assert [ax.get_title(loc="left") for ax in plots.plot_curves([own]).axes] == ["score"]
    legend = plots.plot_cross_table({("lantm", "own"): own, ("lantm", "copy"): make()}).legends[0]
    assert [text.get_text() for text in legend.get_texts()][:3] == ["score", "token accuracy", "exact match"]


def test_training(tmp_path):
    history = [{"step": i, "loss": np.array([1.0, 2, np.nan]) / i, "seconds": i / 10} for i in range(1, 9)]
    figure = plots.plot_training([*history, {"step": 9, "validation": 1}], tmp_path / "a.png")
    median = figure.axes[0].lines[-1]
    np.testing.assert_allclose(median.get_ydata(), 1.5 / np.arange(1, 9))
    assert figure.axes[0].get_yscale() == "log"
    assert figure.axes[0].get_title(loc="right") == "median and each of 3 seeds, 1 s"
    assert plots.plot_training([{"step": 1, "loss": 0.0}]).axes[0].get_yscale() == "linear"


def test_nothing_to_draw():
    with pytest.raises(ValueError, match="no curves"):
        plots.plot_curves([])
    with pytest.raises(ValueError, match="no entry with a loss"):
        plots.plot_training([{"step": 1}])


def test_perplexity_has_a_panel_of_its_own():
    """With the steps at which it was measured; the axis is logarithmic."""
    history = [{"step": 1, "loss": [2.0, 1.0]}, {"step": 2, "loss": [1.0, 0.5], "test/perplexity": [40.0, 400.0]}]
    loss, perplexity = plots.plot_training(history).axes
    assert loss.get_ylabel() == "training loss (log scale)"
    assert perplexity.get_ylabel() == "perplexity on the split test (log scale)"
    assert [line.get_xydata().tolist() for line in perplexity.lines] == [[[2, 40]], [[2, 400]], [[2, 220]]]
    with pytest.raises(ValueError, match="unknown metric 'f1'"):
        plots.plot_curves([make()], metric="f1")
