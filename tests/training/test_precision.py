"""`Training.precision`: a run in bfloat16 trains, is saved with it, and is evaluated with it."""

from __future__ import annotations

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lenmem import configs, load, models, train
from lenmem.evaluation.metrics import ApplyModel
from lenmem.models.lantm import LANTM
from lenmem.nn import Completion, LSTMCell, Transducer, TransformerEncoder
from lenmem.tasks.base import draw
from lenmem.tasks.lantm import Copy
from lenmem.training.program import seeds_program
from lenmem.training.step import objective
from tests.models import contract
from tests.models.contract import Case, Learning
from tests.training.tiny import MODEL, TASK, Poisoned, experiment

FLAGSHIPS = ("quickstart", "ndr/ctl_small", "nam/fibonacci_small", "dnc/copy_small", "panm/copy_small")


def half(experiment, **training):
    """The same experiment in bfloat16."""
    return dataclasses.replace(
        experiment, training=dataclasses.replace(experiment.training, precision="bf16", **training)
    )


def test_a_run_is_trained_saved_and_evaluated_in_bfloat16(tmp_path):
    run = train(experiment(precision="bf16"), directory=tmp_path / "run")
    assert np.all(run.alive)
    again = load(tmp_path / "run")
    assert again.experiment.training.precision == "bf16"
    assert again.experiment.bound_model.dtype == jnp.bfloat16
    assert {leaf.dtype for leaf in jax.tree.leaves(again.params)} == {np.dtype(np.float32)}

    batch = draw(TASK, jax.random.key(0), jnp.asarray([3, 2]), 3)
    inputs = (batch.inputs, batch.input_mask, batch.target_mask)
    rough, exact = (jax.jit(MODEL.clone(spec=TASK.spec, dtype=dtype).apply) for dtype in (jnp.bfloat16, None))
    outputs = again.apply(*inputs)
    np.testing.assert_array_equal(outputs, rough({"params": again.seed_params()}, *inputs))
    assert not np.array_equal(outputs, exact({"params": again.seed_params()}, *inputs))


def test_loss_and_scored_outputs_are_float32():
    model = experiment(precision="bf16").bound_model
    batch = draw(TASK, jax.random.key(0), jnp.asarray([3, 2]), 3)
    inputs = (batch.inputs, batch.input_mask, batch.target_mask)
    params = jax.eval_shape(model.init, jax.random.key(0), *inputs)["params"]
    assert jax.eval_shape(model.apply, {"params": params}, *inputs).dtype == jnp.bfloat16
    assert jax.eval_shape(ApplyModel(model), params, *inputs).dtype == jnp.float32
    total, loss = jax.eval_shape(lambda params: objective(model, TASK, params, batch, {}), params)
    assert total.dtype == loss.dtype == jnp.float32


@pytest.mark.parametrize("name", ["ndr", "ndr_absolute_relative_gate", "lstm", "lantm", "dnc", "lsam"])
def test_gates_of_memories_and_of_the_residual_stream_are_float32(name):
    """Every sigmoid of the network, traced in bfloat16."""
    task = Copy(vocabulary=4, train_lengths=(1, 3))
    model = models.make(name, task.spec, dtype=jnp.bfloat16)
    batch = draw(task, jax.random.key(0), jnp.asarray([3, 2]), 3)
    inputs = (batch.inputs, batch.input_mask, batch.target_mask)
    params = jax.eval_shape(model.init, jax.random.key(0), *inputs)
    gates = re.findall(r":(\w+)\[[\d,]*\] = logistic", str(jax.make_jaxpr(model.apply)(params, *inputs)))
    assert gates and set(gates) == {"f32"}


@pytest.mark.parametrize("name", configs.names())
def test_every_configuration_has_the_policy(name):
    assert half(configs.load_config(name)).bound_model.dtype == jnp.bfloat16


def test_the_policy_reaches_modules_in_fields():
    """Every product of the network is computed in bfloat16, except in a part with a dtype of its own."""

    def factors(model) -> set[str]:
        batch = draw(TASK, jax.random.key(0), jnp.asarray([3, 2]), 3)
        inputs = (batch.inputs, batch.input_mask, batch.target_mask)
        params = jax.eval_shape(model.init, jax.random.key(0), *inputs)
        return set(re.findall(r":(\w+)\[[\d,]*\] = dot_general", str(jax.make_jaxpr(model.apply)(params, *inputs))))

    encoder = TransformerEncoder(layers=1, heads=2, feedforward_size=8)
    for model in (Transducer(LSTMCell(8)), Completion(encoder, embedding_size=8)):
        assert factors(experiment(model, precision="bf16").bound_model) == {"bf16"}
    own = Transducer(LSTMCell(8, dtype=jnp.float32))
    assert factors(experiment(own, precision="bf16").bound_model) == {"bf16", "f32"}


def test_the_policy_needs_a_model_that_can():
    with pytest.raises(ValueError, match="'bf16', but Poisoned has no field `dtype`"):
        experiment(Poisoned(), precision="bf16")
    with pytest.raises(ValueError, match="'bf16', but model.dtype is float32; leave one out"):
        experiment(MODEL.clone(dtype=jnp.float32), precision="bf16")
    assert experiment(MODEL.clone(dtype=jnp.bfloat16), precision="bf16").bound_model.dtype == jnp.bfloat16
    with pytest.raises(ValueError, match="precision"):
        experiment(precision="fp8")


@pytest.mark.slow
@pytest.mark.parametrize("name", FLAGSHIPS)
def test_flagships_take_a_step(name):
    """The other networks: `check_bfloat16` of the models' contract."""
    program = seeds_program(half(configs.load_config(name), seeds=1, seeds_at_once=None), jax.random.key(0))
    _, record = program.advance(program.init(), 1)
    assert np.all(record.alive)
    assert np.all(np.isfinite(record.grad_norm)) and np.all(record.grad_norm > 0)


@pytest.mark.slow
@pytest.mark.learning
def test_the_quickstart_is_learned(learns):
    """Up to twice the trained length, as in float32."""
    learning = Learning(0.6, 0.996, updates=600, learning_rate=3e-2, b2=0.9, batch_size=32)
    model = LANTM(read_gate_bias=0.0, forget_bias=0.0, dtype=jnp.bfloat16)
    contract.check_learns(Case("lantm_bf16", model, learning, Copy(vocabulary=64, train_lengths=(2, 12))), learns)
