"""LANTM and SLANTM against the float64 twin that runs whole rows with a list as memory."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lenmem.models.lantm import LANTM, SLANTM
from lenmem.tasks.base import draw
from lenmem.tasks.lantm import Copy
from tests.models import twin

small = {"hidden_size": 7, "memory_width": 4, "embedding_size": 5}
TASK = Copy(vocabulary=6, train_lengths=(1, 6))


@pytest.mark.parametrize(
    "model",
    [
        LANTM(**small),
        LANTM(**small, weighting="softmax", bound_action=False, write_gate_bias=-1.0, read_gate_bias=1.0),
        LANTM(**small, action_interpolation=True, write_gate_bias=-1.0),
        SLANTM(**small),
        SLANTM(**small, weighting="softmax", bound_action=True, write_gate_bias=-1.0),
        SLANTM(**small, action_interpolation=True, write_gate_bias=-1.0),
        SLANTM(**small, action_interpolation=True, rotation_interpolation="trigonometric", write_gate_bias=-1.0),
    ],
    ids=[
        "lantm",
        "lantm_softmax_unbounded",
        "lantm_actions",
        "slantm",
        "slantm_softmax_bounded",
        "slantm_actions_angle",
        "slantm_actions_trigonometric",
    ],
)
def test_whole_rows_equal_the_twin(model):
    twin.check(twin.LieTwin, model, TASK)


@pytest.mark.parametrize("model", [LANTM(**small), SLANTM(**small)], ids=["lantm", "slantm"])
def test_traces_tell_what_the_memory_did(model):
    model = model.clone(spec=TASK.spec)
    batch = draw(TASK, jax.random.key(0), jnp.asarray([2, 5]), 6)
    call = (batch.inputs, batch.input_mask, batch.target_mask)
    params = twin.random_parameters(model, batch, scale=0.5)
    _, mutated = jax.jit(lambda params: model.apply({"params": params}, *call, mutable=["traces"]))(params)
    cell, interface = mutated["traces"]["cell"], mutated["traces"]["Transducer_0"]
    decoding, valid = np.asarray(interface["decoding"][0]), np.asarray(interface["valid"][0])
    weights = np.asarray(cell["read_weights"][0])
    assert weights.shape == (14, 2, 8)  # 1 learned slot, then begin and 6 inputs
    np.testing.assert_allclose(weights[valid].sum(-1), 1, atol=0.02)  # short of 1 by 1e-10 beside weak strengths
    for row, length in enumerate((2, 5)):
        np.testing.assert_array_equal(decoding[:, row], np.arange(14) >= length + 1)
        assert valid[:, row].sum() == 2 * length + 2
        assert np.all(weights[decoding[:, row], row, length + 2 :] == 0)  # the decoder writes nothing
        assert interface["token"][0][0, row] == TASK.spec.vocabulary
        assert interface["token"][0][length + 1, row] == TASK.spec.vocabulary + 1
    strengths = np.asarray(cell["write_strength"][0])[valid]
    assert np.all((strengths > 0) & (strengths < 1))
    if model.group == "rotation":
        for name in ("read_head", "write_head"):
            np.testing.assert_allclose(np.linalg.norm(cell[name][0], axis=-1)[valid], 1, atol=1e-4)
    else:
        # Initially the write gate is nearly closed, so each write is one bounded shift away from the last.
        steps = np.linalg.norm(np.diff(cell["write_head"][0], axis=0), axis=-1)
        assert np.all(steps < 1.01)
