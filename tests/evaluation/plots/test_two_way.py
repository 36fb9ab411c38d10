"""The walks of the heads of a two-way transducer."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lenmem.evaluation import plots
from lenmem.evaluation.plots import Scene
from lenmem.evaluation.traces import collect
from lenmem.models import TwoWay
from lenmem.tasks.base import draw
from lenmem.tasks.lantm import Copy

TASK = Copy(vocabulary=3, train_lengths=(1, 4))


@pytest.fixture(scope="module")
def scene() -> Scene:
    """An example of three tokens in a batch with room for five."""
    model = TwoWay(hidden_size=4, states=3, heads=2, spec=TASK.spec)
    batch = jax.jit(lambda key: draw(TASK, key, jnp.array([3]), 5))(jax.random.key(0))
    params = jax.jit(model.init)(jax.random.key(0), batch.inputs, batch.input_mask, batch.target_mask)["params"]
    return Scene(TASK.spec, batch, collect(model, params, batch), TASK.input_names, TASK.answer_names, "copy")


def test_each_head_is_a_line_over_the_answers(scene, tmp_path):
    figure = plots.plot_heads(scene, tmp_path / "heads.png")
    walks = figure.axes[0].lines
    assert [line.get_label() for line in walks] == ["head 1", "head 2"]
    for head, line in enumerate(walks):
        np.testing.assert_array_equal(line.get_xdata(), [1, 2, 3, 4])
        np.testing.assert_array_equal(line.get_ydata(), scene.trace("head")[:4, head])
    assert "end" in figure.axes[0].get_ylabel() and "4" in figure.axes[0].get_ylabel()
    np.testing.assert_array_equal(figure.axes[1].lines[0].get_ydata(), scene.trace("symbol")[:4].argmax(-1))
    assert (tmp_path / "heads.png").read_bytes().startswith(b"\x89PNG")


def test_the_picture_is_drawn_for_the_traces_of_the_network(scene, tmp_path):
    plots.draw(scene, lambda name: tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == ["heads.png"]
