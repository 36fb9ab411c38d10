"""Every recurrent cell: gradients of weights formed after the loop equal those added step by step."""

from __future__ import annotations

import functools
from typing import Any

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lenmem.models.dnc import DNC
from lenmem.models.lantm import LANTM
from lenmem.models.lstm import LSTM
from lenmem.models.nam import LSAMEncoder
from lenmem.models.ntm import NTM
from lenmem.models.panm import BEYOND, PANM
from lenmem.models.transformer_seq2seq import TransformerSeq2Seq
from lenmem.nn.cells import GRUCell
from lenmem.nn.encoders import Recurrent
from lenmem.ops import products
from lenmem.tasks.base import draw
from lenmem.tasks.lantm import Copy
from tests.drawing import drawn
from tests.marks import often

TASK = Copy(vocabulary=8, train_lengths=(1, 6))
BATCH = jax.jit(lambda key: draw(TASK, key, jnp.asarray([6, 2]), 6))(jax.random.key(7))
SEQUENCE = np.random.default_rng(8).normal(size=(2, 19, 32)).astype(np.float32), np.arange(19) < np.array([[19], [7]])
CASES: dict[str, tuple[nn.Module, tuple[Any, ...], int]] = {
    "lstm": (LSTM(hidden_size=16, embedding_size=8, spec=TASK.spec), BATCH[:2], 1),
    "gru": (Recurrent(GRUCell(16), bidirectional=True), SEQUENCE, 2),
    "lantm": (LANTM(hidden_size=16, memory_width=4, embedding_size=8, spec=TASK.spec), BATCH[:2], 2),
    "dnc": (DNC(hidden_size=16, slots=6, width=4, read_heads=2, spec=TASK.spec), BATCH[:2], 2),
    "dnc_feedforward": (
        DNC(hidden_size=16, slots=6, width=4, controller="feedforward", regularization=0.0, spec=TASK.spec),
        BATCH[:2],
        4,
    ),
    "ntm": (NTM(hidden_size=16, slots=8, width=4, spec=TASK.spec), BATCH[:2], 2),
    "panm": (PANM(hidden_size=16, mlp_size=12, bits=5, spec=TASK.spec), BATCH[:2], 16),
    "panm_beyond": (PANM(**BEYOND, hidden_size=16, mlp_size=12, spec=TASK.spec), BATCH[:2], 10),
    "panm_transformer": (
        TransformerSeq2Seq(
            16, 1, 1, heads=2, feedforward_size=8, pointers=True, bits=5, feedback="open_loop", spec=TASK.spec
        ),
        BATCH[:2],
        16,
    ),
    "nam": (LSAMEncoder(heads=4, feedforward_size=16, dropout=0.0), SEQUENCE, 1),
}
"""name -> (network, inputs and mask, number of products found in all its loops)."""


@pytest.mark.parametrize("name", often(CASES, {"lstm", "lantm"}))
def test_gradients_equal_plain_differentiation(name, monkeypatch):
    """In float32 at opt level 0. The difference is that of the order of a sum, relative to the largest entry."""
    model, inputs, expected = CASES[name]
    masks = (BATCH.target_mask,) if inputs[0] is BATCH.inputs else ()
    params = drawn(model.init, *inputs, *masks)
    found = []
    searched = products.SharedProducts.__init__

    def counted(self, *arguments):
        searched(self, *arguments)
        found.append(len(self.products))

    monkeypatch.setattr(products.SharedProducts, "__init__", counted)

    def loss(params):
        return jnp.sum(jnp.sin(model.apply({"params": params}, *inputs, *masks)))

    @functools.partial(jax.jit, static_argnums=1)
    def gradient(params, limit):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(products, "LARGEST", limit)
            return jax.grad(loss)(params)

    after, stepwise = gradient(params, 1e9), gradient(params, 0.0)
    leaves = (map(np.asarray, jax.tree.leaves(tree)) for tree in (after, stepwise))
    for leaf, other in zip(*leaves, strict=True):
        scale = np.maximum(np.max(np.abs(other)), 1e-3)
        chex.assert_trees_all_close(leaf / scale, other / scale, atol=2e-6)
    assert max(found) == expected
