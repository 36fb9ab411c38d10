"""`Dropout`: the form for a TPU drops what Flax's does. What the networks drop."""

import collections

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lenmem import models
from lenmem.nn.dropout import Dropout
from lenmem.placement import on_platform
from lenmem.types import STREAMS, Spec

X = jnp.arange(1, 121.0).reshape(2, 3, 20)


class Twice(nn.Module):
    """Two modules, with keys of their own."""

    kind: type[nn.Dropout]
    rate: float = 0.4

    @nn.compact
    def __call__(self, x, deterministic=False):
        return self.kind(self.rate)(self.kind(self.rate, deterministic=deterministic)(x), deterministic=deterministic)


def results(module, deterministic=False):
    def value(x, key):
        return module.apply({}, x, deterministic, rngs={"dropout": key})

    keys = jax.random.split(jax.random.key(0), 2)
    return jax.jit(jax.vmap(jax.value_and_grad(lambda x, key: jnp.sum(value(x, key) ** 2))))(X, keys)


@pytest.mark.parametrize("platform", ["cpu", "tpu"])
@pytest.mark.parametrize("rate", [0.0, 0.4, 1.0])
def test_values_and_gradients_are_those_of_flax(platform, rate):
    with on_platform(platform):
        ours = results(Twice(Dropout, rate))
        off = results(Twice(Dropout, rate), deterministic=True)
    jax.tree.map(np.testing.assert_array_equal, ours, results(Twice(nn.Dropout, rate)))
    jax.tree.map(np.testing.assert_array_equal, off, results(Twice(nn.Dropout, 0.0)))


def test_the_mask_is_stored_on_a_tpu_alone():
    def text():
        return jax.jit(lambda x: Twice(Dropout).apply({}, x, rngs={"dropout": jax.random.key(0)})).lower(X).as_text()

    assert "optimization_barrier" not in text()
    with on_platform("tpu"):
        assert "optimization_barrier" in text()


SIZES = {"hidden_size": 16, "feedforward_size": 12, "heads": 2, "encoder_layers": 1, "decoder_layers": 1, "steps": 1}
DROPPED = {
    ("lstm", "dropout"): {16: 1},  # between two layers
    ("transformer", "dropout"): {16: 3 + 2, 8: 2, 12: 2},
    ("nam_transformer", "dropout"): {16: 3 + 2, 12: 2},
    ("transformer_seq2seq", "dropout"): {16: 3 + 4, 7: 2, 3: 1, 12: 2},
    ("bert", "dropout"): {16: 3 + 2, 8: 2, 12: 2},
    ("bert_span", "dropout"): {16: 3 + 2, 5: 2},
    ("lsam", "dropout"): {16: 3, 12: 1},
    ("lstm_attention", "dropout"): {16: 3},
    ("lstm_classifier", "dropout"): {16: 2},
    ("transformer_shared", "dropout"): {16: 2, 12: 1},
    ("transformer_shared", "position_dropout"): {16: 1},
    ("delta_net", "dropout"): {16: 4},
}
"""(model, field) -> number of dropouts of states (of width 16), hidden units (12), and attention weights to the 8
columns of input and answer, the 7 of an input with its ends, its 5, or the 3 answers. There are two `layers`."""


@pytest.mark.parametrize(("name", "field"), DROPPED)
def test_all_that_a_network_drops_in_training(name, field):
    known = models.fields_of(name)
    fields = {key: value for key, value in (SIZES | {"layers": 2}).items() if key in known}
    fields |= dict.fromkeys([key for key in known if key.endswith("dropout")], 0.0)
    spans = name == "bert_span"
    spec = Spec(vocabulary=4, output_size=5, answers_are_columns=spans, separator=3 if spans else None)
    model, answers = models.make(name, spec, **fields | {field: 0.5}), 2 if spans else 3
    batch = jnp.zeros((1, 5), int), jnp.ones((1, 5), bool), jnp.ones((1, answers), bool)
    params = jax.eval_shape(model.init, jax.random.key(0), *batch)
    found = {}

    def notice(call, args, kwargs, context):
        if isinstance(context.module, Dropout) and context.module.rate:
            asked = kwargs.get("deterministic", args[1] if len(args) > 1 else None)
            off = context.module.deterministic if asked is None else asked
            found[context.module.path] = (args[0].shape[-1], bool(off))
        return call(*args, **kwargs)

    def run(train):
        found.clear()
        rngs = dict.fromkeys(STREAMS, jax.random.key(0))
        given = {"targets": jnp.zeros((1, answers), int), "train": train, "rngs": rngs}
        with nn.intercept_methods(notice):
            jax.eval_shape(lambda params: model.apply(params, *batch, **given), params)
        return collections.Counter(width for width, off in found.values() if not off)

    assert run(train=True) == DROPPED[name, field]
    assert not run(train=False)
