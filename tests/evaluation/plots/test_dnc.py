"""Pictures of a controller's states, and of the modes of its memory."""

from __future__ import annotations

import math

import numpy as np
import pytest

from lenmem.evaluation import plots
from lenmem.evaluation.plots.dnc import mode_histograms
from lenmem.evaluation.states import PHASES, States, pca_map
from tests.evaluation.paths import traces_of


def gated() -> dict[str, np.ndarray]:
    """Two rows of four steps and one of padding: two heads that change from sequence to content."""
    traces = traces_of(np.zeros((2, 5, 1)), encoding=2, steps=(4, 4))
    content = np.array([[0.0, 0.1, 0.9, 1.0, math.nan]] * 2)[..., None] * [1, 1]
    content[1, 0] = [0.5, 0.7]
    rest = 1 - content
    traces["read_modes"] = np.stack([0.25 * rest, content, 0.75 * rest], axis=-1)
    traces["allocation_gate"] = np.array([[1.0, 1.0, 0.2, 0.3, 7], [0.9, 1.0, 0.0, 0.6, -7]])
    return traces


def test_modes_by_phase():
    modes = mode_histograms(gated(), bins=4)
    np.testing.assert_allclose(modes.edges, [0, 0.25, 0.5, 0.75, 1])
    np.testing.assert_allclose(modes.write["encoding"], [0, 0, 0, 1])
    np.testing.assert_allclose(modes.write["decoding"], [0.5, 0.25, 0.25, 0])
    np.testing.assert_allclose(modes.read["encoding"], [6 / 8, 0, 2 / 8, 0])
    np.testing.assert_allclose(modes.read["decoding"], [0, 0, 0, 1])
    never = mode_histograms(gated() | {"decoding": np.zeros((2, 5), bool)})
    assert not never.write["decoding"].any() and never.read["encoding"].sum() == pytest.approx(1)


@pytest.mark.parametrize(
    ("changed", "bins", "message"),
    [
        ({}, 0, "bins must be at least 1, got 0"),
        ({"read_modes": np.zeros((2, 5, 3))}, 20, r"got shape \(2, 5, 3\)"),
    ],
)
def test_modes_of_nothing(changed, bins, message):
    with pytest.raises(ValueError, match=message):
        mode_histograms(gated() | changed, bins=bins)


def test_pictures_of_states(tmp_path):
    traces = traces_of(np.random.default_rng(0).normal(size=(3, 12, 5)), encoding=7, steps=(12, 10, 9))
    symbols = np.arange(36).reshape(3, 12) % 5
    symbols[0, 0] = -1
    maps = {phase: pca_map(traces, phase) for phase in PHASES}
    names = {"encoding": ["$0", "a", "b", "c", "d"]}
    figure = plots.plot_states(maps, tmp_path / "a.png", symbols=symbols, names=names, title="copy")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    panels = [ax for ax in figure.axes if ax.get_title(loc="left")]
    assert [ax.get_title(loc="left") for ax in panels] == [
        "encoding, by time",
        "encoding, by symbol",
        "decoding, by time",
        "decoding, by symbol",
    ]
    dots = panels[0].collections[0]
    np.testing.assert_allclose(dots.get_offsets(), maps["encoding"].points)
    np.testing.assert_array_equal(dots.get_array(), maps["encoding"].time)
    assert len(panels[0].lines) == 3
    assert len(np.unique(panels[1].collections[0].get_facecolor(), axis=0)) == 6, "five symbols and none"
    legends = [[text.get_text() for text in panels[i].get_legend().get_texts()] for i in (1, 3)]
    assert legends == [[r"\$0", "a", "b", "c", "d"], ["0", "1", "2", "3", "4"]]
    plain = plots.plot_states({"encoding": maps["encoding"]})
    assert [ax.get_title(loc="left") for ax in plain.axes][:1] == ["encoding, by time"]
    many = plots.plot_states(maps, symbols=np.arange(36).reshape(3, 12))
    assert all(ax.get_legend() is None for ax in many.axes)


def test_pictures_of_modes(tmp_path):
    traces = gated()
    figure = plots.plot_modes(traces, tmp_path / "a.png", bins=4, title="sort")
    assert (tmp_path / "a.png").exists()
    modes = mode_histograms(traces, bins=4)
    shares = [modes.write["encoding"], modes.write["decoding"], modes.read["encoding"], modes.read["decoding"]]
    for ax, wanted in zip(figure.axes, shares, strict=True):
        np.testing.assert_allclose(ax.patches[0].get_data().values, wanted)
    ends = {ax.get_title(loc="left"): [tick.get_text() for tick in ax.get_xticklabels()] for ax in figure.axes}
    assert ends["write mode, decoding"] == ["0\nby content", "1\nallocation"]
    assert ends["read mode, encoding"] == ["0\nsequential", "1\nby content"]


def test_no_states_to_draw():
    with pytest.raises(ValueError, match="no maps given"):
        plots.plot_states({})
    with pytest.raises(ValueError, match=r"must lie in the plane, got shape \(4, 3\)"):
        plots.plot_states({"encoding": States(np.zeros((4, 3)), np.zeros(4, int), np.arange(4))})
