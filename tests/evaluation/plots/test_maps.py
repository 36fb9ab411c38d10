"""Heat maps and strips show the given numbers, and as many names as can be read."""

from __future__ import annotations

import numpy as np
import pytest

from lenmem.evaluation import plots


def test_attention(tmp_path):
    weights = np.random.default_rng(0).dirichlet(np.ones(5), size=7)
    figure = plots.plot_attention(weights, tmp_path / "a.png", rows=list("abcdefg"), columns=["begin", *"hijk"])
    np.testing.assert_allclose(figure.axes[0].images[0].get_array(), weights)
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == list("abcdefg")
    with pytest.raises(ValueError, match="rows must name 7, got 2 names"):
        plots.plot_attention(weights, rows=["a", "b"])
    with pytest.raises(ValueError, match="must be a matrix with at least one entry, got shape"):
        plots.plot_attention(weights[0])


def test_strips_and_marks(tmp_path):
    strips = {"gate": np.linspace(0, 1, 6)[:, None], "address": np.arange(-6, 6).reshape(6, 2)}
    figure = plots.plot_strips(strips, tmp_path / "a.png", columns=list("abcdef"), mark=3)
    top, bottom = figure.axes[:2]
    np.testing.assert_array_equal(bottom.images[0].get_array(), strips["address"].T)
    assert [line.get_xdata()[0] for line in (top.lines[0], bottom.lines[0])] == [2.5, 2.5]
    assert bottom.get_xlabel() == "step; right of the line: answers"
    with pytest.raises(ValueError, match="the same number of steps"):
        plots.plot_strips({"a": np.zeros((2, 1)), "b": np.zeros((3, 1))})


def test_of_many_names_some_are_written():
    maps = np.random.default_rng(0).random((2, 130, 70))
    figure = plots.plot_maps(maps, rows=[str(i) for i in range(130)], mark=66)
    shown = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert shown == [str(i) for i in range(0, 130, 130 // len(shown) + (130 % len(shown) > 0))]
    assert figure.get_supylabel() == "step; below the line: answers"
    with pytest.raises(ValueError, match=r"maps must be \[n, T, K\]"):
        plots.plot_maps(maps[0])
