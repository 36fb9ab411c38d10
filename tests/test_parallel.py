"""`lenmem.parallel` against one device: on the suite's two devices and, in a separate process, on eight.

Run as a program, this file does the checks of the eight devices (`main`).
"""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from lenmem import Experiment, Optimizer, Training, models, ops, parallel, train
from lenmem.nn.transformer import PreNormEncoder
from lenmem.parallel import make_mesh, pmap_outer_product_attention, sharded_outer_product_attention
from lenmem.tasks.base import draw
from lenmem.tasks.dyck import Dyck
from lenmem.tasks.lantm import Copy
from lenmem.tasks.panm import DynamicRecall
from lenmem.training.lanes import replaced
from lenmem.training.step import device_mesh
from lenmem.types import PyTree
from tests.compilations import compilations
from tests.marks import often
from tests.training.tiny import Bag

COPY = Copy(vocabulary=4, train_lengths=(1, 3))
CELL = models.make("gru", hidden_size=4, embedding_size=3)
SHORT: dict[str, Any] = {"steps": 2, "log_every": 1, "optimizer": Optimizer("sgd", learning_rate=0.1)}
BATCH, HEADS, LENGTH, WIDTH, VALUE = 4, 2, 61, 8, 6


def example(length=LENGTH):
    """Queries, keys, values, and the weights of an objective."""
    rng = np.random.default_rng(0)
    shapes = [(BATCH, HEADS, length, width) for width in (WIDTH, WIDTH, VALUE, VALUE)]
    return [jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in shapes]


def value_and_gradients(attention: Callable[..., jax.Array]):
    """For a weighted sum of the reads: (reads, gradients to queries, keys and values)."""

    def objective(query, key, value, weight):
        read = attention(query, key, value)
        return jnp.sum(read * weight), read

    def both(*arguments):
        (_, read), gradients = jax.value_and_grad(objective, (0, 1, 2), has_aux=True)(*arguments)
        return read, gradients

    return both


def assert_same(got, expected, tolerance=2e-5):
    chex.assert_trees_all_close(got, expected, rtol=tolerance, atol=tolerance)


def check_pmap(causal: bool, length: int = LENGTH):
    """Values and gradients of pmap equal those of one device, even if the devices do not divide the length."""
    arguments = example(length)
    attention = functools.partial(ops.normalized_outer_product_attention, causal=causal)
    expected = jax.jit(value_and_gradients(attention))(*arguments)
    got = value_and_gradients(functools.partial(pmap_outer_product_attention, causal=causal))(*arguments)
    assert_same(got, expected)


def check_sharded(causal: bool, data: int):
    """The same for shard_map on a mesh with a batch axis, with masked keys, inside one jitted function."""
    mesh = make_mesh(data=data)
    mask = jnp.arange(LENGTH) < jnp.asarray([LENGTH, 1, 40, 0])[:, None, None]
    one = functools.partial(ops.normalized_outer_product_attention, causal=causal, key_mask=mask)
    many = functools.partial(
        sharded_outer_product_attention, causal=causal, key_mask=mask, mesh=mesh, batch_axis="data"
    )
    arguments = example()
    expected = jax.jit(value_and_gradients(one))(*arguments)
    assert_same(jax.jit(value_and_gradients(many))(*arguments), expected)


def check_communication(causal: bool, data: int):
    """Devices exchange memories of d_v x d_k, and nothing that grows with the sequence."""
    mesh = make_mesh(data=data)
    sharding = NamedSharding(mesh, PartitionSpec("data", None, "sequence"))
    attention = functools.partial(sharded_outer_product_attention, causal=causal, mesh=mesh, batch_axis="data")
    shapes = [
        jax.ShapeDtypeStruct((BATCH, HEADS, 4096, width), jnp.float32, sharding=sharding)
        for width in (WIDTH, WIDTH, VALUE)
    ]
    program = jax.jit(attention, out_shardings=sharding).lower(*shapes).compile().as_text()
    exchanged = collectives(program)
    memories = BATCH // data * HEADS * VALUE * WIDTH
    expected = {"all-gather": memories * mesh.shape["sequence"]} if causal else {"all-reduce": memories}
    assert exchanged == expected, exchanged


def collectives(program: str) -> dict[str, int]:
    """Kind -> numbers in the results of all collectives of that kind in an HLO program."""
    found: dict[str, int] = {}
    kinds = "all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter|collective-broadcast"
    for dimensions, kind in re.findall(rf"= \w+\[([\d,]*)\]\S* ({kinds})(?:-start)?\(", program):
        found[kind] = found.get(kind, 0) + int(np.prod([int(x) for x in dimensions.split(",") if x]))
    return found


class Sharded(nn.Module):
    """A small NAM-Transformer over token ids, with any attention of [B, heads, S, d]."""

    attention: Callable[..., jax.Array]

    @nn.compact
    def __call__(self, tokens):
        states = nn.Embed(12, 16, name="embedding")(tokens)
        hidden = nn.LayerNorm(name="norm")(states)
        project = [nn.DenseGeneral((HEADS, WIDTH), use_bias=False, name=name)(hidden) for name in ("q", "k", "v")]
        read = jnp.swapaxes(self.attention(*(jnp.swapaxes(x, 1, 2) for x in project)), 1, 2)
        states = states + nn.DenseGeneral(16, axis=(-2, -1), use_bias=False, name="out")(read)
        return nn.Dense(12, name="head")(nn.relu(nn.Dense(32, name="hidden")(states)))


class Partitioned(nn.Module):
    """The library's own model, without any code for devices."""

    @nn.compact
    def __call__(self, tokens):
        states = nn.Embed(12, 16, name="embedding")(tokens)
        encoder = PreNormEncoder(layers=1, heads=HEADS, feedforward_size=32, name="encoder")
        return nn.Dense(12, name="head")(encoder(states, jnp.ones(tokens.shape, bool)))


def trained(model: nn.Module, params: PyTree, sharding: NamedSharding | None):
    """(losses, parameters) of three steps on reversing sequences, their tokens laid out by `sharding`."""
    tokens = jnp.asarray(np.random.default_rng(0).integers(0, 12, (BATCH, 64)))
    batch = (tokens, tokens[:, ::-1])

    def loss(params, tokens, answers):
        logits = model.apply(params, tokens)
        return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, answers))

    # Compiling takes longer than running.
    @functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
    def step(params, *batch):
        value, gradients = jax.value_and_grad(loss)(params, *batch)
        return jax.tree.map(lambda x, g: x - 0.1 * g, params, gradients), value

    if sharding is not None:
        batch = jax.device_put(batch, sharding)
        params = jax.device_put(params, NamedSharding(sharding.mesh, PartitionSpec()))
    losses = []
    for _ in range(3):
        params, value = step(params, *batch)
        losses.append(float(value))
    return losses, params


def check_training(data: int):
    """A NAM-Transformer trains data- and sequence-parallel as on one device, parameter by parameter.

    Both with the attention by shard_map, and with the library's own model, which XLA partitions from the layout of its
    tokens.
    """
    mesh = make_mesh(data=data)
    sharding = NamedSharding(mesh, PartitionSpec("data", "sequence"))
    sharded = functools.partial(sharded_outer_product_attention, mesh=mesh, batch_axis="data")
    for one, many in (
        (Sharded(ops.normalized_outer_product_attention), Sharded(sharded)),
        (Partitioned(), Partitioned()),
    ):
        params = jax.jit(one.init)(jax.random.key(0), jnp.zeros((BATCH, 64), int))
        losses, expected = trained(one, params, None)
        assert losses[2] < losses[1] < losses[0]
        found, got = trained(many, params, sharding)
        np.testing.assert_allclose(found, losses, rtol=1e-5)
        assert_same(got, expected)


def check_interfaces(counts: tuple[int, ...]):
    """One model of each interface trains on several devices as on one."""
    encoder = models.make("transformer", hidden_size=8, layers=1, heads=2, feedforward_size=8)
    for task, model in {
        "Transducer": (COPY, CELL),
        "EncoderDecoder": (COPY, models.make("attention", hidden_size=4, embedding_size=3)),
        "Completion": (COPY, encoder),
        "Readout": (DynamicRecall(vocabulary=4, train_lengths=(1, 3)), encoder),
        "Aligned": (Dyck(kinds=1, longest=4, examples=16), CELL),
    }.values():
        check_losses(Experiment(task, model, Training(batch_size=8, **SHORT)), counts)


def check_losses(experiment: Experiment, counts: tuple[int, ...]):
    """Losses of every seed and step, and the parameters, are those of one device."""
    one, *runs = (train(replaced(experiment, {"training.devices": count})) for count in (1, *counts))
    for run in runs:
        for entry, expected in zip(run.history, one.history, strict=True):
            np.testing.assert_allclose(entry["loss"], expected["loss"], rtol=1e-5)
        assert_same(run.params, one.params)


# On two devices -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("causal", [False, True])
def test_pmap_is_one_device(causal: bool):
    """On the suite's two devices."""
    check_pmap(causal)


@pytest.mark.parametrize("causal", [False, True])
def test_pmap_of_more_devices_than_there_are(causal: bool):
    """Seven devices, some of which have only padding, emulated by `vmap`."""
    arguments = [x[0, 0, :17] for x in example()]
    expected = value_and_gradients(functools.partial(ops.normalized_outer_product_attention, causal=causal))(*arguments)
    devices = jax.devices()[:1] * 7
    parallel._pmapped.cache_clear()
    with chex.fake_pmap():
        attention = functools.partial(pmap_outer_product_attention, causal=causal, devices=devices)
        assert_same(value_and_gradients(attention)(*arguments), expected)
    parallel._pmapped.cache_clear()


def test_pmap_compiles_once():
    """A second call with the same shapes compiles nothing, and neither does a second gradient."""
    both = value_and_gradients(functools.partial(pmap_outer_product_attention, causal=True))
    jax.block_until_ready(both(*example()))
    with compilations() as compiled:
        jax.block_until_ready(both(*example()))
        assert not compiled
        jax.jit(lambda x: 3 * x)(jnp.ones(7))
        assert compiled


@pytest.mark.parametrize("causal", [False, True])
def test_integer_values_are_read_as_floats(causal: bool):
    """As on one device."""
    query, key, *_ = (x[0, 0] for x in example())
    value = jnp.arange(3 * LENGTH).reshape(LENGTH, 3)
    expected = ops.normalized_outer_product_attention(query, key, value, causal=causal)
    assert expected.dtype == jnp.float32
    assert_same(pmap_outer_product_attention(query, key, value, causal=causal), expected)
    assert_same(sharded_outer_product_attention(query, key, value, mesh=make_mesh(), causal=causal), expected)


def test_pmap_on_chosen_devices_and_short_sequences():
    """One device, and fewer positions than devices; without leading axes."""
    query, key, value, _ = (x[0, 0, :1] for x in example())
    expected = ops.normalized_outer_product_attention(query, key, value)
    for devices in (None, jax.devices()[:1]):
        assert_same(pmap_outer_product_attention(query, key, value, devices=devices, causal=True), expected)


def test_the_operations_run_inside_shard_map():
    """Scan and chunks adopt the layout of their inputs, with a batch split over devices."""
    _, key, value, _ = (x[:, 0] for x in example())
    half = jnp.full(key.shape[:-1], 0.5)

    def both(key, value, half):
        attended = ops.normalized_outer_product_attention(key, key, value, causal=True, chunk_size=8)
        return ops.nam_scan(key, value, half, half, queries=key, chunk_size=8), attended

    spec = PartitionSpec("data")
    sharded = jax.jit(jax.shard_map(both, mesh=make_mesh(data=2), in_specs=spec, out_specs=spec))
    key = ops.unit(key)
    assert_same(sharded(key, value, half), jax.jit(both)(key, value, half))


@pytest.mark.parametrize(
    "network",
    often(
        ["dnc", "lantm", "looped_transformer", "lsam", "lstm", "panm", "ram", "transformer_seq2seq", "two_way"],
        always=("dnc", "lantm", "lstm"),
    ),
)
def test_networks_can_be_differentiated_inside_shard_map(network):
    """In a training step of the user's own, with the batch split over devices: loss and gradients as on one device. The
    device whose rows all are shorter takes fewer steps."""
    task = Copy(vocabulary=4, train_lengths=(1, 4))
    model = models.make(network, task.spec)
    batch = draw(task, jax.random.key(0), jnp.array([2, 2, 4, 3]), 4)
    asked = batch.inputs, batch.input_mask, batch.target_mask
    params = jax.jit(model.init)(jax.random.key(1), *asked)["params"]

    def loss(params, batch):
        outputs = model.apply({"params": params}, batch.inputs, batch.input_mask, batch.target_mask)
        log_likelihoods = jax.nn.log_softmax(outputs)
        each = jnp.take_along_axis(log_likelihoods, batch.targets[..., None], axis=-1)[..., 0]
        return -jnp.sum(jnp.where(batch.score_mask, each, 0))

    def on_each(params, batch):
        return jax.lax.psum(loss(params, batch), "data")

    whole, split = PartitionSpec(), PartitionSpec("data")
    sharded = jax.shard_map(on_each, mesh=make_mesh(data=2), in_specs=(whole, split), out_specs=whole)
    value, gradient = jax.jit(jax.value_and_grad(sharded))(params, batch)
    expected = jax.jit(jax.value_and_grad(loss))(params, batch)
    chex.assert_trees_all_close((value, gradient), expected, rtol=1e-4, atol=1e-5)


def test_mesh_takes_the_devices_that_data_leaves():
    """All of them, or as many as asked for."""
    assert dict(make_mesh().shape) == {"data": 1, "sequence": 2}
    assert dict(make_mesh(data=2).shape) == {"data": 2, "sequence": 1}
    assert dict(make_mesh(sequence=1).shape) == {"data": 1, "sequence": 1}
    with pytest.raises(ValueError, match="data=3 does not divide 2 devices"):
        make_mesh(data=3)
    with pytest.raises(ValueError, match="2 x 4 needs 8 devices; there are 2"):
        make_mesh(data=2, sequence=4)


def test_what_does_not_fit_is_refused():
    """Errors say what was got."""
    query, key, value, _ = example()
    with pytest.raises(ValueError, match=r"got query \(4, 2, 60, 8\), key \(4, 2, 61, 8\)"):
        pmap_outer_product_attention(query[:, :, :60], key, value)
    with pytest.raises(ValueError, match="at least one device"):
        pmap_outer_product_attention(query, key, value, devices=[])
    mesh = make_mesh(data=2)
    with pytest.raises(ValueError, match="the mesh has the axes data, sequence, not 'model'"):
        sharded_outer_product_attention(query, key, value, mesh=mesh, axis="model")
    with pytest.raises(ValueError, match="do not divide a batch of 3"):
        sharded_outer_product_attention(query[:3], key[:3], value[:3], mesh=mesh, batch_axis="data")
    with pytest.raises(ValueError, match="no batch to split"):
        sharded_outer_product_attention(query[0, 0], key[0, 0], value[0, 0], mesh=mesh, batch_axis="data")


# On eight -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "checks",
    [
        pytest.param("operations", marks=pytest.mark.thorough),
        pytest.param("interfaces", marks=pytest.mark.slow),
    ],
)
def test_eight_devices_are_one(checks: str):
    """All of `main`, in a process with eight virtual devices."""
    flags = re.sub(r"--xla_force_host_platform_device_count=\d+", "", os.environ.get("XLA_FLAGS", ""))
    environment = os.environ | {
        "XLA_FLAGS": f"{flags} --xla_force_host_platform_device_count=8",
        "JAX_PLATFORMS": "cpu",
    }
    command = [sys.executable, "-W", "error", __file__, checks]
    root = Path(__file__).parent.parent
    run = subprocess.run(command, env=environment | {"PYTHONPATH": str(root)}, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.split() == ["8", "devices", "agree"]


def main(checks: str) -> None:
    """Values, gradients, communication and training over all devices; or the training of each interface."""
    jax.config.update("jax_default_matmul_precision", "highest")
    if checks == "interfaces":
        check_interfaces(counts=(2, 8))
    else:
        check_operations()
    print(jax.device_count(), "devices agree")


def check_operations():
    """For the sequence over devices; and for seeds and batches over them at once."""
    for causal in (False, True):
        check_pmap(causal)
        check_sharded(causal, data=2)
        check_communication(causal, data=2)
    check_training(data=2)
    # Two of eight seeds on each pair of devices, which share a batch of two.
    mesh = device_mesh(8, 2)
    assert mesh is not None
    assert dict(mesh.shape) == {"seed": 4, "data": 2}
    check_losses(Experiment(COPY, Bag(), Training(batch_size=2, seeds=8, **SHORT)), (8,))


if __name__ == "__main__":
    main(sys.argv[1])
