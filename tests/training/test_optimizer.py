"""Optimisers against float64 NumPy twins written from the update formulas, schedules at hand-computed points."""

from __future__ import annotations

import dataclasses
import operator

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import tyro
from hypothesis import given
from hypothesis import strategies as st

from lenmem.training.optimizer import Constant, Cosine, LinearDecay, Optimizer, StepDecay, WarmupRsqrt, decay_kernels

SHAPES = {"layer": {"kernel": (3, 4), "bias": (4,)}, "start": (2,)}


def tree(seed: int, scale: float = 1.0):
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda s: scale * rng.normal(size=s), SHAPES, is_leaf=lambda s: isinstance(s, tuple))


def as_float32(values):
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), values)


def run(optimizer: Optimizer, params, gradients, steps: int = 100):
    rule = optimizer.build(steps)
    params = as_float32(params)
    state = rule.init(params)

    @jax.jit
    def update(params, state, gradient):
        updates, state = rule.update(gradient, state, params)
        return optax.apply_updates(params, updates), state

    for gradient in gradients:
        params, state = update(params, state, as_float32(gradient))
    return params


def assert_close(actual, expected):
    chex.assert_trees_all_close(actual, expected, rtol=2e-5, atol=2e-6)


def twin(params, gradients, step):
    """Runs `step(t, leaf, gradient, memory) -> leaf` in float64 on every leaf separately."""
    leaves, structure = jax.tree.flatten(params)
    memories = [{} for _ in leaves]
    for t, gradient in enumerate(gradients):
        leaves = [
            step(t, p, g, memory) for p, g, memory in zip(leaves, jax.tree.leaves(gradient), memories, strict=True)
        ]
    return jax.tree.unflatten(structure, leaves)


@pytest.mark.parametrize(
    "momentum, weight_decay, schedule",
    [(0.0, 0.0, Constant()), (0.9, 0.1, Constant()), (0.9, 0.0, StepDecay(factor=0.5, every=2, delay=1))],
)
def test_rmsprop_equals_torch(momentum, weight_decay, schedule):
    eps = 0.1  # large, so that its place matters

    def step(t, p, g, memory):
        rate = 0.05 * (0.5 ** (max(0, t - 1) // 2) if isinstance(schedule, StepDecay) else 1)
        g = g + weight_decay * p
        memory["v"] = 0.9 * memory.get("v", 0) + 0.1 * g**2
        memory["b"] = momentum * memory.get("b", 0) + g / (np.sqrt(memory["v"]) + eps)
        return p - rate * memory["b"]

    optimizer = Optimizer("rmsprop", 0.05, schedule, momentum=momentum, weight_decay=weight_decay, decay=0.9, eps=eps)
    gradients = [tree(i) for i in range(1, 8)]
    assert_close(run(optimizer, tree(0), gradients), twin(tree(0), gradients, step))


@pytest.mark.parametrize("name", ["adam", "adamw"])
def test_adam_and_adamw(name):
    def step(t, p, g, memory):
        decay = 0.2 * p
        if name == "adam":
            g = g + decay
        memory["m"] = 0.8 * memory.get("m", 0) + 0.2 * g
        memory["v"] = 0.95 * memory.get("v", 0) + 0.05 * g**2
        scaled = memory["m"] / (1 - 0.8 ** (t + 1)) / (np.sqrt(memory["v"] / (1 - 0.95 ** (t + 1))) + 1e-3)
        return p - 0.05 * (scaled + (decay if name == "adamw" else 0))

    optimizer = Optimizer(name, 0.05, weight_decay=0.2, b1=0.8, b2=0.95, eps=1e-3)
    gradients = [tree(i) for i in range(1, 8)]
    assert_close(run(optimizer, tree(0), gradients), twin(tree(0), gradients, step))


def test_sgd_with_momentum():
    def step(t, p, g, memory):
        memory["b"] = 0.7 * memory.get("b", 0) + g
        return p - 0.1 * memory["b"]

    gradients = [tree(i) for i in range(1, 5)]
    assert_close(run(Optimizer("sgd", 0.1, momentum=0.7), tree(0), gradients), twin(tree(0), gradients, step))


def test_clipping_by_global_norm():
    gradient, params = tree(1, scale=10.0), tree(0)
    norm = np.sqrt(sum(np.sum(g**2) for g in jax.tree.leaves(gradient)))
    expected = jax.tree.map(lambda p, g: p - 0.5 * g * 3.0 / norm, params, gradient)
    assert_close(run(Optimizer("sgd", 0.5, clip_norm=3.0), params, [gradient]), expected)
    small = tree(1, scale=1e-3)
    expected = jax.tree.map(lambda p, g: p - 0.5 * g, params, small)
    assert_close(run(Optimizer("sgd", 0.5, clip_norm=3.0), params, [small]), expected)


def test_clipping_by_value_comes_before_the_norm():
    gradient, params = tree(1, scale=10.0), tree(0)
    clipped = jax.tree.map(lambda g: np.clip(g, -0.5, 0.5), gradient)
    expected = jax.tree.map(lambda p, g: p - g, params, clipped)
    assert_close(run(Optimizer("sgd", 1.0, clip_value=0.5), params, [gradient]), expected)
    norm = np.sqrt(sum(np.sum(g**2) for g in jax.tree.leaves(clipped)))
    expected = jax.tree.map(lambda p, g: p - g * min(1, 0.7 / norm), params, clipped)
    assert_close(run(Optimizer("sgd", 1.0, clip_value=0.5, clip_norm=0.7), params, [gradient]), expected)


def test_clipping_precedes_coupled_decay():
    params = tree(0)
    zero = jax.tree.map(np.zeros_like, params)
    expected = jax.tree.map(lambda p: p - 0.1 * 5.0 * p, params)
    assert_close(run(Optimizer("sgd", 0.1, clip_norm=1e-3, weight_decay=5.0), params, [zero]), expected)


@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_decay_mask(name):
    params = tree(0)
    zero = jax.tree.map(np.zeros_like, params)
    result = run(Optimizer(name, 0.1, weight_decay=0.5, decay_mask="kernels"), params, [zero])
    np.testing.assert_allclose(result["layer"]["kernel"], params["layer"]["kernel"] * 0.95, rtol=1e-5)
    np.testing.assert_allclose(result["layer"]["bias"], params["layer"]["bias"], rtol=1e-6)
    np.testing.assert_allclose(result["start"], params["start"], rtol=1e-6)
    assert decay_kernels({"recurrent_kernel": 1, "kernels": 1}) == {"recurrent_kernel": True, "kernels": False}
    with pytest.raises(ValueError, match="no parameter is named"):
        Optimizer(name, weight_decay=0.1, decay_mask="kernels").build(1).init({"w": jnp.zeros(2)})


@pytest.mark.parametrize(
    "schedule, steps, points",
    [
        (Constant(), 10, {0: 1.0, 9: 1.0, 99: 1.0}),
        # LANTM at full scale: the factor after 10,000 updates is 0.99^350.
        (StepDecay(), 10_000, {0: 1.0, 3000: 1.0, 3019: 1.0, 3020: 0.99, 3040: 0.9801, 10_000: 0.029671}),
        (StepDecay(0.5, every=3, delay=2), 10, {2: 1.0, 4: 1.0, 5: 0.5, 7: 0.5, 8: 0.25}),
        (Cosine(), 100, {0: 1.0, 25: 0.853553, 50: 0.5, 100: 0.0, 200: 0.0}),
        (Cosine(warmup=4, final=0.2), 104, {0: 0.25, 1: 0.5, 3: 1.0, 4: 1.0, 54: 0.6, 104: 0.2, 500: 0.2}),
        (Cosine(warmup=0.25), 16, {0: 0.25, 3: 1.0, 4: 1.0, 10: 0.5, 16: 0.0}),
        (Cosine(warmup=1), 101, {0: 1.0, 1: 1.0, 51: 0.5, 101: 0.0}),  # one update, not all of them
        (LinearDecay(), 100, {0: 1.0, 25: 0.75, 99: 0.01, 100: 0.0}),
        (LinearDecay(warmup=2, final=0.5), 12, {0: 0.5, 1: 1.0, 2: 1.0, 7: 0.75, 12: 0.5}),
        (LinearDecay(warmup=0.1), 4, {0: 1.0, 2: 0.5, 4: 0.0}),
        (LinearDecay(warmup=0.1), 16, {0: 0.5, 1: 1.0, 2: 1.0, 9: 0.5, 16: 0.0}),  # 1.6 updates are two
        (WarmupRsqrt(4), 10, {0: 0.25, 3: 1.0, 15: 0.5, 63: 0.25}),
    ],
    ids=str,
)
def test_schedules(schedule, steps, points):
    for count, expected in points.items():
        np.testing.assert_allclose(schedule(count, steps), expected, atol=2e-6)
    counts = jnp.array(sorted(points))
    np.testing.assert_allclose(
        jax.jit(schedule, static_argnums=1)(counts, steps), [points[c] for c in sorted(points)], atol=2e-6
    )
    np.testing.assert_allclose(
        Optimizer(learning_rate=3.0, schedule=schedule).rate(counts[0], steps), 3 * points[int(counts[0])], atol=1e-5
    )


@given(
    warmup=st.integers(0, 50),
    extra=st.integers(0, 50),
    final=st.floats(0, 1),
    kind=st.sampled_from([Cosine, LinearDecay]),
)
def test_warmed_schedules_rise_then_fall_within_bounds(warmup, extra, final, kind):
    steps = warmup + extra + 1
    values = np.asarray(kind(warmup, final)(jnp.arange(105), steps))
    assert np.all((values >= -1e-6) & (values <= 1 + 1e-6))
    assert np.all(np.diff(values[:warmup]) >= -1e-6)
    assert np.all(np.diff(values[warmup:]) <= 1e-6)
    np.testing.assert_allclose(values[steps:], final, atol=1e-5)


def test_a_sweep_of_learning_rates_is_one_vmapped_program():
    params, gradient = as_float32(tree(0)), as_float32(tree(1))

    def one(rate, decay):
        rule = Optimizer("adamw", learning_rate=rate, weight_decay=decay).build(10)
        return optax.apply_updates(params, rule.update(gradient, rule.init(params), params)[0])

    rates, decays = jnp.array([0.1, 0.01]), jnp.array([0.0, 0.3])
    together = jax.jit(jax.vmap(one))(rates, decays)
    for i in range(2):
        assert_close(jax.tree.map(operator.itemgetter(i), together), one(float(rates[i]), float(decays[i])))


@pytest.mark.parametrize(
    "build, message",
    [
        (lambda: Optimizer("admw"), "Did you mean 'adamw'"),  # pyright: ignore[reportArgumentType]
        (lambda: Optimizer("lion"), "name is 'lion'; allowed are adam, adamw, rmsprop, sgd"),  # pyright: ignore[reportArgumentType]
        (lambda: Optimizer(learning_rate=-1), "learning_rate is -1; it must be a finite number, at least 0"),
        (lambda: Optimizer(learning_rate=float("nan")), "learning_rate"),
        (lambda: Optimizer(learning_rate=float("inf")), "learning_rate"),
        (lambda: Optimizer(learning_rate="fast"), "learning_rate"),  # pyright: ignore[reportArgumentType]
        (lambda: Optimizer(clip_norm=0.0), "clip_norm is 0.0; it must be a finite number, above 0 or None"),
        (lambda: Optimizer(clip_value=-2.0), "clip_value"),
        (lambda: Optimizer(weight_decay=-0.1), "weight_decay"),
        (lambda: Optimizer(decay_mask="kernel"), "Did you mean 'kernels'"),  # pyright: ignore[reportArgumentType]
        (lambda: Optimizer("rmsprop", decay=1.0), "decay is 1.0; it must be a finite number, at least 0 and below 1"),
        (lambda: Optimizer(b2=1.5), "b2"),
        (lambda: Optimizer("adam", momentum=0.9), "momentum belongs to sgd and rmsprop"),
        (lambda: Optimizer(schedule="cosine"), "schedule must be Constant, StepDecay"),  # pyright: ignore[reportArgumentType]
        (lambda: StepDecay(every=0), "StepDecay.every"),
        (lambda: StepDecay(factor=0.0), "StepDecay.factor"),
        (lambda: Cosine(warmup=-1), "Cosine.warmup"),
        (lambda: WarmupRsqrt(0), "WarmupRsqrt.warmup"),
        (lambda: Optimizer().build(-1), "steps must not be negative"),
        (lambda: Optimizer(schedule=LinearDecay(warmup=11)).build(10), "longer than the training"),
    ],
)
def test_errors(build, message):
    with pytest.raises(ValueError) as caught:
        build()
    assert message in str(caught.value)


def test_on_the_command_line():
    arguments = ["--learning-rate", "0.5", "--clip-norm", "3", "schedule:step-decay", "--schedule.every", "7"]
    parsed = tyro.cli(Optimizer, args=arguments, default=Optimizer("rmsprop"))
    assert parsed == Optimizer("rmsprop", 0.5, StepDecay(every=7), clip_norm=3.0)
    assert tyro.cli(Optimizer, args=[], default=Optimizer("sgd", 0.1, Cosine(3))) == Optimizer("sgd", 0.1, Cosine(3))
    assert hash(dataclasses.replace(parsed)) == hash(parsed)


@pytest.mark.parametrize("schedule", [Cosine, LinearDecay])
def test_a_rate_may_end_above_its_peak(schedule):
    multiplier = schedule(warmup=10, final=2.0)
    assert [float(multiplier(count, 110)) for count in (4, 9, 110)] == pytest.approx([0.5, 1.0, 2.0])
