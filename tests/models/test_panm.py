"""PANM as a model: its presets, what it reads, and the shared contract beyond its default."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lenmem.evaluation import traces
from lenmem.models.panm import BEYOND, PANM, PAPER, PUBLISHED, delimited, with_delimiters
from lenmem.tasks.base import draw
from lenmem.tasks.lantm import Copy
from lenmem.types import Spec
from tests.drawing import drawn as drawn_by
from tests.learning import briefly
from tests.models import contract
from tests.models.contract import Case, Learning

TINY: dict[str, Any] = {"hidden_size": 8, "mlp_size": 6}
TASK = Copy(vocabulary=5, train_lengths=(1, 6))
BATCH = jax.jit(lambda key: draw(TASK, key, jnp.array([4, 1, 6]), 6))(jax.random.key(0))
UNUSED = Learning(1.0)

FED_BACK = Case("teacher_forced", PANM(**TINY, feedback="teacher_forced", address_heads=3), UNUSED, TASK)


def parameters(model, batch=BATCH):
    """Shapes alone."""
    return jax.eval_shape(lambda: model.init(jax.random.key(0), *batch[:2], batch.target_mask))["params"]


def drawn(model, batch=BATCH):
    """U(-0.5, 0.5)."""
    return drawn_by(model.init, *batch[:2], batch.target_mask)


def count(tree):
    return sum(leaf.size for leaf in jax.tree.leaves(tree))


def test_the_paper_has_as_many_parameters_as_its_layout():
    """The fact sheet counts as Torch does: LSTMs have a second bias vector. We also learn an (unused) blank."""
    spec = Spec(vocabulary=9, output_size=10)  # with three special symbols 12 one-hot columns, as in the code
    params = parameters(PANM(**PAPER, spec=spec))
    second_bias, blank = 4 * 256, 11
    assert count(params) == 1_776_138 - second_bias + blank
    assert count(params["decoder"]["recurrence"]) == 3 * 256 * (3 * 256 + 256 + 2)


@pytest.mark.parametrize("preset", [PAPER, PUBLISHED, BEYOND], ids=["paper", "published", "beyond"])
def test_presets_are_fields_that_differ_from_the_default(preset):
    assert all(getattr(PANM(), field) != value for field, value in preset.items())
    assert count(parameters(PANM(**preset, spec=TASK.spec)))


def test_heads_are_counted():
    base = parameters(PANM(**TINY, address_heads=1, content_heads=0, spec=TASK.spec))["decoder"]
    assert {"units_0", "address_maps_0"} <= set(base)
    assert not {"units_1", "content_maps_0"} & set(base)
    most = parameters(PANM(**TINY, address_heads=3, content_heads=2, spec=TASK.spec))["decoder"]
    assert {"units_2", "content_maps_1"} <= set(most)
    none = parameters(PANM(**TINY, address_heads=0, content_heads=0, spec=TASK.spec))["decoder"]
    assert set(none) == {"recurrence"}


@pytest.mark.thorough
@pytest.mark.parametrize("check", [contract.check_shapes, contract.check_capacity_and_traces])
def test_teacher_forcing_keeps_the_contract(check):
    check(FED_BACK)


def test_delimiters_are_slots():
    """[begin | inputs | end]: two more slots, with the end right after each row's last input."""
    rows, mask = delimited(BATCH.inputs, BATCH.input_mask, TASK.spec)
    spec = with_delimiters(TASK.spec)
    assert spec.vocabulary == TASK.spec.vocabulary + 2
    for row, n in enumerate((4, 1, 6)):
        np.testing.assert_array_equal(rows[row, : n + 2], [5, *BATCH.inputs[row, :n], 6])
        assert mask[row].sum() == n + 2
    values = jnp.where(BATCH.input_mask[..., None], jax.nn.one_hot(BATCH.inputs, 6), jnp.nan)
    spec = Spec(vocabulary=5, channels=1, output_size=5)
    rows, spec = delimited(values, BATCH.input_mask, spec)[0], with_delimiters(spec)
    assert spec.channels == 3
    assert spec.input_width == rows.shape[-1] == 8
    np.testing.assert_array_equal(rows[1, :3, -2:], [[1, 0], [0, 0], [0, 1]])
    assert np.all(np.isfinite(rows))


@pytest.mark.parametrize(("delimiters", "slots"), [(True, 8), (False, 6)])
def test_traces_show_pointers_addresses_and_relations(delimiters, slots):
    model = PANM(**TINY, encoder="none", delimiters=delimiters, sharpening="evaluation", spec=TASK.spec)
    seen = traces.collect(model, drawn(model), BATCH)
    steps = BATCH.target_mask.shape[1]
    assert seen["pointer_weights"].shape == (3, steps, 2, slots)
    assert seen["relation_weights"].shape == (3, steps, 1, slots)
    address = seen["address"]  # hard pointers always have an address; with base 0 addresses are slots
    assert np.issubdtype(address.dtype, np.integer)
    np.testing.assert_array_equal(address, np.argmax(seen["pointer_weights"], -1))


def test_sharpening_at_evaluation_spares_training():
    soft, sharp = (PANM(**TINY, encoder="none", sharpening=kind, spec=TASK.spec) for kind in ("none", "evaluation"))
    params = drawn(soft)

    def outputs(model, train):
        options: dict[str, Any] = {"train": train, "rngs": {"address": jax.random.key(1)}}
        call = functools.partial(model.apply, {"params": params}, *BATCH[:2], BATCH.target_mask, **options)
        return np.asarray(briefly(call)())

    trained = outputs(sharp, train=True)
    np.testing.assert_allclose(outputs(soft, train=True), trained, atol=1e-6)
    assert np.max(np.abs(outputs(sharp, train=False) - trained)) > 1e-3


@pytest.mark.parametrize("decoder", ["none", "stack_rnn"])
def test_aligned_tasks_have_a_growing_memory(decoder):
    """Output t depends on inputs 0 .. t alone."""
    spec = Spec(vocabulary=4, output_size=3, outputs="multi_hot", alignment="aligned", causal=True)
    inputs, others = np.array([[[0, 1, 2, 3], [3, 1, 0, 0]], [[0, 1, 0, 3], [3, 1, 2, 2]]])
    mask = np.array([[True] * 4, [True, True, False, False]])
    model = PANM(**TINY, decoder=decoder, spec=spec)
    assert model.supports(spec) is None
    params = drawn_by(model.init, inputs, mask, mask)
    call = briefly(model.apply)
    outputs, other = (np.asarray(call({"params": params}, x, mask, mask)) for x in (inputs, others))
    assert outputs.shape == (2, 4, 3)
    np.testing.assert_allclose(other[0, :2], outputs[0, :2], atol=1e-6)
    np.testing.assert_allclose(other[1, :2], outputs[1, :2], atol=1e-6)
    assert np.max(np.abs(other[0, 2:] - outputs[0, 2:])) > 1e-4
    embedding = model.clone(embedding_size=5)
    assert jax.eval_shape(embedding.init, jax.random.key(0), inputs, mask, mask)


def test_a_stack_under_pointers_needs_aligned_answers():
    with pytest.raises(ValueError, match="decoder='stack_rnn' needs answers aligned"):
        jax.eval_shape(
            PANM(**TINY, decoder="stack_rnn", spec=TASK.spec).init, jax.random.key(0), *BATCH[:2], BATCH.target_mask
        )


def test_what_it_cannot_take():
    assert "causal" in str(PANM().supports(Spec(vocabulary=4, output_size=4, causal=True)))
    for fields, message in (
        ({"bits": 3}, "bits is 3: its 8 addresses must outnumber the 8 slots"),
        ({"encoder": "rnn"}, "encoder is 'rnn'; allowed are lstm, bigru, transformer, none"),
        ({"sharpening": "all"}, "sharpening is 'all'; allowed are none, evaluation, straight_through"),
    ):
        with pytest.raises(ValueError, match=message):
            parameters(PANM(**{**TINY, **fields}, spec=TASK.spec))


@pytest.mark.parametrize("encoder", ["lstm", "bigru", "transformer", "none"])
def test_any_encoder_and_float_inputs(encoder):
    spec = Spec(vocabulary=4, channels=2, output_size=3)
    inputs, mask = jnp.ones((2, 5, 6)), jnp.ones((2, 5), bool)
    model = PANM(**TINY, encoder=encoder, heads=2, spec=spec)
    init = functools.partial(model.init, jax.random.key(0))
    variables = jax.eval_shape(init, inputs, mask, mask)
    assert jax.eval_shape(model.apply, variables, inputs, mask, mask).shape == (2, 5, 3)
