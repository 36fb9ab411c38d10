"""Products with shared weights, against plain differentiation of the same loop."""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lenmem.ops.counted_scan import counted_scan
from lenmem.ops.products import SharedProducts, shared_scan
from tests.marks import thorough

ROWS, WIDTH, STEPS = 2, 3, 3


def normal(seed, *shape):
    return jax.device_put(np.random.default_rng(seed).normal(size=shape).astype(np.float32))


WEIGHTS = {
    "kernel": normal(0, 2 * WIDTH, WIDTH),
    "bias": jax.device_put(np.arange(WIDTH, dtype=np.float32) / 4),
    "tied": normal(1, WIDTH, WIDTH),
    "scale": jnp.asarray(0.5),
    "memory": normal(2, ROWS, 7, WIDTH),
    "count": jnp.asarray(3),
}
"""`tied` is used in a product and also as it is, `memory` in a product with the rows as a batch."""
CARRY = (jnp.ones((ROWS, WIDTH)), jnp.asarray(0))
INPUTS = normal(3, STEPS, ROWS, WIDTH)


def step(weights, carry, x):
    """Products on either side, in another dtype, of a changed weight, and one after another."""
    state, time = carry
    seen = jnp.concatenate([x, state], axis=-1)
    hidden = jnp.tanh(seen @ (weights["kernel"] / jnp.sum(weights["kernel"] ** 2)) + weights["bias"])
    scores = jnp.einsum("bd,bnd->bn", hidden, weights["memory"])
    read = jnp.einsum("bn,bnd->bd", jax.nn.softmax(scores), weights["memory"])
    turned = jnp.einsum("ij,bj->bi", weights["tied"], read) + hidden @ weights["tied"].T
    state = jnp.sin(turned * weights["scale"] + jnp.diag(weights["tied"]) + weights["count"]) + read * state
    return (state, time + 1), (hidden @ weights["kernel"][:WIDTH], time)


def looped(weights, carry, xs):
    """The same loop in Python."""
    outputs = []
    for x in xs:
        carry, output = step(weights, carry, x)
        outputs.append(output)
    return carry, jax.tree.map(lambda *x: jnp.stack(x), *outputs)


def scanned(weights, carry, xs):
    return shared_scan(step, weights, carry, xs[0])(weights, carry, xs)


def scalar(run):
    """A function of all floats of weights, carry and inputs."""

    def loss(floats, start, xs):
        (state, _), (outputs, _) = run(WEIGHTS | floats, (start, CARRY[1]), xs)
        return jnp.sum(jnp.cos(state)) + jnp.sum(outputs**2)

    return loss


FLOATS = {name: value for name, value in WEIGHTS.items() if name != "count"}
POINT = (FLOATS, CARRY[0], INPUTS)


def test_finds_the_products_and_what_else_their_weights_do():
    found = SharedProducts(step, WEIGHTS, CARRY, INPUTS[0])
    assert len(found.products) == 6
    names = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(WEIGHTS)]
    assert [names[i] for i in found.plain] == ["['bias']", "['scale']", "['tied']"]


def test_values_and_gradients_equal_a_loop():
    values, expected = (jax.jit(run)(WEIGHTS, CARRY, INPUTS) for run in (scanned, looped))
    chex.assert_trees_all_close(values, expected, atol=1e-6)
    gradients, expected = (jax.jit(jax.grad(scalar(run), (0, 1, 2)))(*POINT) for run in (scanned, looped))
    chex.assert_trees_all_close(gradients, expected, atol=1e-6, rtol=1e-5)


def test_forward_and_second_derivatives_equal_a_loop():
    towards = jax.tree.map(np.cos, POINT)

    def curvature(run):
        slope = jax.jvp(scalar(run), POINT, towards)[1]
        return slope, jax.jvp(jax.grad(scalar(run), (0, 1, 2)), POINT, towards)[1]

    mine, expected = (jax.jit(curvature, static_argnums=0)(run) for run in (scanned, looped))
    chex.assert_trees_all_close(mine, expected, atol=1e-5, rtol=1e-4)


def test_many_rows_and_small_weights_are_left_plain():
    rows = jnp.ones((WIDTH * 2 + 1, WIDTH))
    found = SharedProducts(lambda w, c, x: (c, x @ w), jnp.ones((WIDTH, WIDTH)), (), rows)
    assert not found.found
    assert SharedProducts(lambda w, c, x: (c, x @ w), jnp.ones((WIDTH, WIDTH)), (), rows[:1]).found


def test_seeds_in_one_program_equal_seeds_alone():
    several = jax.tree.map(lambda x: np.stack([x, np.float32(1.5) * x]), FLOATS)
    together = jax.jit(jax.vmap(jax.grad(scalar(scanned)), (0, None, None)))(several, *POINT[1:])
    together, gradient = jax.tree.map(np.asarray, together), jax.jit(jax.grad(scalar(looped)))
    for seed in range(2):
        alone = gradient(jax.tree.map(lambda x, i=seed: x[i], several), *POINT[1:])
        chex.assert_trees_all_close(jax.tree.map(lambda x, i=seed: x[i], together), alone, atol=1e-5, rtol=1e-4)


def test_half_precision_is_summed_once():
    """A gradient of many equal bfloat16 terms: a running sum in bfloat16 would stop growing at 256."""
    xs = jnp.ones((2048, 1, 1), jnp.bfloat16)

    def loss(weight):
        scan = shared_scan(lambda w, c, x: (c, x @ w.astype(jnp.bfloat16)), weight, (), xs[0])
        return jnp.sum(scan(weight, (), xs)[1].astype(jnp.float32))

    np.testing.assert_allclose(jax.jit(jax.grad(loss))(np.ones((1, 1), np.float32)), [[2048.0]])


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("count", [0, 4, *thorough((1,), (6,))])
def test_counted_scan_equals_a_loop_over_the_first_steps(count, whole):
    """Values, and gradients in all floats; later outputs are zero and later inputs have no gradient."""
    xs = jnp.concatenate([INPUTS, INPUTS[::-1]])[:6]
    size, computed = 3, -(-count // 3) * 3 if whole else count

    def counted(weights, carry, xs):
        scan = counted_scan(SharedProducts(step, weights, carry, xs[0]), size, whole=whole)
        return scan(weights, carry, xs, jnp.asarray(count))

    def first(weights, carry, xs):
        rest = jnp.zeros((len(xs) - computed, *INPUTS.shape[1:2], WIDTH)), jnp.zeros(len(xs) - computed, jnp.int32)
        if not computed:
            return carry, rest
        carry, outputs = looped(weights, carry, xs[:computed])
        return carry, jax.tree.map(lambda x, y: jnp.concatenate([x, y]), outputs, rest)

    values, expected = (jax.jit(run)(WEIGHTS, CARRY, xs) for run in (counted, first))
    chex.assert_trees_all_close(values, expected, atol=1e-5, rtol=1e-4)
    point = (FLOATS, CARRY[0], xs)
    gradients, expected = (jax.jit(jax.grad(scalar(run), (0, 1, 2)))(*point) for run in (counted, first))
    chex.assert_trees_all_close(gradients, expected, atol=1e-4, rtol=1e-3)
    towards = jax.tree.map(np.cos, point)
    bends, expected = (
        jax.jit(lambda *x, run=run: jax.jvp(jax.grad(scalar(run), (0, 1, 2)), x, towards)[1])(*point)
        for run in (counted, first)
    )
    chex.assert_trees_all_close(bends, expected, atol=1e-3, rtol=1e-3)


def test_products_of_a_counted_scan_are_stored_and_the_rest_is_recomputed():
    """A gradient has one product in each loop and one for each group of steps, and the tanh in both loops."""

    def loss(weight, carry, count):
        def step(weight, carry, x):
            carry = jnp.tanh(carry @ weight + x)
            return carry, carry

        scan = counted_scan(SharedProducts(step, weight, carry, INPUTS[0]), 2, whole=False)
        return jnp.sum(scan(weight, carry, INPUTS, count)[1])

    program = jax.jit(jax.grad(loss)).lower(normal(0, WIDTH, WIDTH), CARRY[0], jnp.asarray(3)).compile().as_text()
    assert program.count(" dot(") == 3
    assert program.count(" tanh(") == 2
