"""Pictures of many networks' scores show the given numbers: a sweep, a table beside the paper's, and the map."""

from __future__ import annotations

import numpy as np
import pytest

from lenmem.evaluation import plots


def test_seeds_of_a_sweep_are_dots_and_their_medians_bars():
    """Losses as they are, other scores in percent; a seed that diverged has no dot."""
    losses, exact = [[1.0, 3.0, 2.5], [0.5, np.nan, 0.25]], [[0.5, 1.0, 0.25], [0.0, np.nan, 1.0]]
    panels = {"validation loss": list(map(np.array, losses)), "exact_match": list(map(np.array, exact))}
    figure = plots.plot_sweep(["slow", "fast"], panels, best=1)
    for ax, scores, unit in zip(figure.axes, (losses, exact), (1, 100), strict=True):
        for row, seeds in enumerate(scores):
            dots, bar = ax.lines[2 * row : 2 * row + 2]
            np.testing.assert_allclose(dots.get_xdata(), unit * np.array(seeds))
            np.testing.assert_allclose(bar.get_xdata(), [unit * np.nanmedian(seeds)])
            assert set(dots.get_ydata()) == set(bar.get_ydata()) == {row}
        (marked,) = ax.patches
        assert marked.get_y() < 1 < marked.get_y() + marked.get_height() < 2
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["slow", "fast"]


def test_rows_of_a_table_are_beside_the_papers():
    """The range and the median of our seeds, the paper's number and the best network; each only where there is one."""
    seeds = np.array([10.0, 40.0, 20.0])
    panels = {"exact match": [(seeds, 30.0, None), (seeds / 2, None, 15.0)]}
    figure = plots.plot_against_paper(["a", "b"], panels, untrained=[False, True])
    (ax,) = figure.axes
    drawn = [(line.get_marker(), line.get_xdata().tolist(), set(line.get_ydata())) for line in ax.lines]
    assert drawn == [
        ("None", [10, 40], {0}),
        ("o", [20], {0}),
        ("D", [30], {0}),
        ("None", [5, 20], {1}),
        ("o", [10], {1}),
        ("^", [15], {1}),
    ]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["a", "b (not trained)"]


def test_the_map_is_coloured_by_reach_grey_where_nothing_was_learned_and_white_where_nothing_was_measured():
    reach = np.array([[1.0, 0.0], [4.0, np.nan]])
    figure = plots.plot_reach(["one", "two"], ["copy", "sort"], reach, texts=[["1x", "(3%)"], ["4x", ""]])
    grey, coloured = (np.ma.filled(image.get_array().astype(float), np.nan) for image in figure.axes[0].images)
    np.testing.assert_array_equal(grey, [[np.nan, 0], [np.nan, np.nan]])
    np.testing.assert_array_equal(coloured, [[1, np.nan], [4, np.nan]])
    texts = {text.get_position(): text.get_text() for text in figure.axes[0].texts}
    assert texts == {(0, 0): "1x", (1, 0): "(3%)", (0, 1): "4x", (1, 1): ""}


@pytest.mark.parametrize("draw", [plots.plot_sweep, plots.plot_against_paper])
def test_nothing_to_draw(draw):
    with pytest.raises(ValueError, match="a picture needs at least one of each"):
        draw([], {})
