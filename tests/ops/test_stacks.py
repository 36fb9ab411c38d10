"""`lenmem.ops.stacks` against float64 twins written from the equations, and as stacks."""

from __future__ import annotations

import functools

import hypothesis.extra.numpy as hnp
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lenmem.ops.stacks import IndexStack, stack_read_weights, stack_update, superposition_stack

T, W = 7, 3
jitted = functools.cache(jax.jit)


def shares(*shape):
    """Numbers in [0, 1], including the ends and repetitions."""
    some = st.one_of(st.sampled_from([0.0, 0.25, 1.0]), st.floats(0, 1, width=32, allow_subnormal=False))
    return hnp.arrays(np.float32, shape, elements=some)


def run(pushes, pops, slots=T):
    """The strengths after each step."""

    def step(strengths, inputs):
        push, pop, time = inputs
        strengths = stack_update(strengths, push, pop, time)
        return strengths, strengths

    start = jnp.zeros((*pushes.shape[1:], slots))
    return jax.lax.scan(step, start, (pushes, pops, jnp.arange(len(pushes))))[1]


# Strengths ------------------------------------------------------------------------------------------------------------


def update_twin(s, d, u):
    """Equation 2 of Grefenstette et al. for a list of strengths, which grows by one."""
    t = len(s)
    return [max(0.0, s[i] - max(0.0, u - sum(s[j] for j in range(i + 1, t)))) for i in range(t)] + [float(d)]


def read_twin(s):
    """Equation 3: the weight of each value."""
    return [min(s[i], max(0.0, 1 - sum(s[j] for j in range(i + 1, len(s))))) for i in range(len(s))]


@given(shares(T), shares(T))
def test_strengths_and_weights_equal_the_twin_and_stay_in_range(pushes, pops):
    strengths = np.asarray(jitted(run)(pushes, pops))
    weights = np.asarray(jitted(stack_read_weights)(strengths))
    exact = []
    for time in range(T):
        exact = update_twin(exact, np.float64(pushes[time]), np.float64(pops[time]))
        np.testing.assert_allclose(strengths[time, : time + 1], exact, atol=1e-5)
        np.testing.assert_allclose(weights[time, : time + 1], read_twin(exact), atol=1e-5)
    assert strengths.min() >= 0 and strengths.max() <= 1
    assert weights.min() >= 0
    np.testing.assert_allclose(weights.sum(-1), np.minimum(1, strengths.sum(-1)), atol=1e-5)
    assert np.all(strengths[np.arange(T)[:, None] < np.arange(T)] == 0)  # slots of later steps
    assert np.all(weights[np.arange(T)[:, None] < np.arange(T)] == 0)


@given(shares(T), shares(T))
def test_a_pop_takes_its_strength_off_as_far_as_there_is_any(pushes, pops):
    totals = np.asarray(jitted(run)(pushes, pops), np.float64).sum(-1)
    before = 0.0
    for time in range(T):
        np.testing.assert_allclose(totals[time], max(0, before - pops[time]) + pushes[time], atol=1e-5)
        before = totals[time]


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=T, max_size=T))
def test_with_whole_pushes_and_pops_it_is_a_stack(actions):
    pushes, pops = (np.array(column, np.float32) for column in zip(*actions, strict=True))
    strengths = np.asarray(jitted(run)(pushes, pops))
    weights = np.asarray(jitted(stack_read_weights)(strengths))
    stack = []
    for time, (push, pop) in enumerate(actions):
        if pop and stack:
            stack.pop()
        if push:
            stack.append(time)
        assert np.flatnonzero(strengths[time]).tolist() == stack
        assert np.flatnonzero(weights[time]).tolist() == stack[-1:]
        assert set(strengths[time]) | set(weights[time]) <= {0.0, 1.0}


def test_a_worked_example():
    """Figure 1 of Grefenstette et al.: push 0.8; pop 0.1, push 0.5; pop 0.9, push 0.9."""
    strengths = run(jnp.asarray([0.8, 0.5, 0.9]), jnp.asarray([0.0, 0.1, 0.9]), slots=3)
    np.testing.assert_allclose(strengths, [[0.8, 0, 0], [0.7, 0.5, 0], [0.3, 0, 0.9]], atol=1e-6)
    weights = stack_read_weights(strengths)
    np.testing.assert_allclose(weights, [[0.8, 0, 0], [0.5, 0.5, 0], [0.1, 0, 0.9]], atol=1e-6)


def test_more_slots_change_nothing_and_no_slot_pushes_nothing():
    generator = np.random.default_rng(0)
    pushes, pops = generator.uniform(size=(2, T, 4)).astype(np.float32)
    few, many = run(pushes, pops), run(pushes, pops, slots=3 * T)
    np.testing.assert_allclose(few, many[..., :T], atol=1e-6)
    assert np.all(np.asarray(many)[..., T:] == 0)
    full = stack_update(few[-1], jnp.ones(4), jnp.zeros(4), T)
    np.testing.assert_array_equal(full, few[-1])


def test_rows_may_be_at_different_steps():
    generator = np.random.default_rng(1)
    strengths, (push, pop) = generator.uniform(size=(3, T)), generator.uniform(size=(2, 3))
    times = np.array([2, 0, 6])
    strengths = jnp.where(jnp.arange(T) < times[:, None], strengths, 0)
    together = stack_update(strengths, push, pop, times)
    for row, time in enumerate(times):
        alone = stack_update(strengths[row], push[row], pop[row], int(time))
        np.testing.assert_allclose(together[row], alone, atol=1e-6)
        np.testing.assert_allclose(together[row, : time + 1], update_twin(strengths[row, :time], push[row], pop[row]))


def test_gradients_are_those_of_the_equations():
    generator = np.random.default_rng(2)
    pushes, pops, direction = generator.uniform(0.1, 0.9, size=(3, T))

    def objective(pushes, pops):
        return stack_read_weights(run(pushes, pops)[-1]) @ jnp.asarray(direction)

    def exact(pushes, pops):
        s = []
        for d, u in zip(pushes, pops, strict=True):
            s = update_twin(s, d, u)
        return np.dot(read_twin(s), direction)

    got = jax.grad(objective, argnums=(0, 1))(*(jnp.asarray(x, jnp.float32) for x in (pushes, pops)))
    for which in range(2):
        for time in range(T):
            moved = [[pushes.copy(), pops.copy()] for _ in range(2)]
            for sign, arguments in zip((1, -1), moved, strict=True):
                arguments[which][time] += sign * 1e-6
            ends = [exact(*arguments) for arguments in moved]
            np.testing.assert_allclose(got[which][time], (ends[0] - ends[1]) / 2e-6, atol=1e-4)
    assert np.abs(np.concatenate(got)).max() > 0.1


def test_empty_and_saturated_stacks_have_finite_gradients():
    for push, pop in ((0.0, 0.0), (1.0, 1.0), (0.0, 1.0)):
        constant = jnp.full(T, push), jnp.full(T, pop)
        gradients = jax.grad(lambda d, u: stack_read_weights(run(d, u)).sum(), argnums=(0, 1))(*constant)
        assert all(np.all(np.isfinite(gradient)) for gradient in gradients)


# Superposition --------------------------------------------------------------------------------------------------------


def superposition_twin(stack, new, push, pop, no_op):
    result = np.zeros_like(stack)
    for i in range(len(stack)):
        above = new if i == 0 else stack[i - 1]
        below = stack[i + 1] if i + 1 < len(stack) else np.zeros_like(new)
        result[i] = push * above + pop * below + no_op * stack[i]
    return result


@pytest.mark.parametrize("slots", [1, T])
@given(st.data())
def test_superposition_equals_the_twin(slots, data):
    stack, new = data.draw(shares(slots, W)), data.draw(shares(W))
    actions = data.draw(shares(3)) + np.float32(0.1)
    push, pop, no_op = (actions / actions.sum()).astype(np.float32)
    got = np.asarray(jitted(superposition_stack)(stack, new, push, pop, no_op))
    exact = superposition_twin(stack.astype(np.float64), new, push, pop, no_op)
    np.testing.assert_allclose(got, exact, atol=1e-6)
    assert got.min() >= 0 and got.max() <= 1 + 1e-6  # a mean of what is in [0, 1]
    got = jitted(superposition_stack)(stack, new, push, 1 - push)
    np.testing.assert_allclose(got, superposition_twin(stack.astype(np.float64), new, push, 1 - push, 0), atol=1e-6)


@given(st.lists(st.sampled_from(["push", "pop", "no_op"]), min_size=2 * T, max_size=2 * T))
def test_with_certain_actions_it_is_a_stack_that_loses_its_bottom(actions):
    stack, exact = jnp.zeros((T, W)), []
    for time, action in enumerate(actions):
        new = np.full(W, time + 1.0, np.float32)
        weights = [np.float32(action == name) for name in ("push", "pop", "no_op")]
        stack = jitted(superposition_stack)(stack, new, *weights)
        exact = {"push": [time + 1, *exact][:T], "pop": exact[1:], "no_op": exact}[action]
        np.testing.assert_array_equal(stack[:, 0], exact + [0] * (T - len(exact)))


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, W - 1)), min_size=3 * T, max_size=3 * T))
def test_a_stack_of_numbers_is_one_of_one_hot_values(steps):
    """Also when it overflows, and when it is popped while empty."""
    numbers, vectors = IndexStack.empty((), T), jnp.zeros((T, W))
    act = jitted(IndexStack.act)
    for action, value in steps:
        numbers = act(numbers, jnp.asarray(value), jnp.asarray(action))
        vectors = jitted(superposition_stack)(vectors, jnp.eye(W)[value], *jnp.eye(3)[action])
        np.testing.assert_array_equal(jax.nn.one_hot(numbers.read(), W), vectors[0])
        assert int(numbers.height) == int(vectors.sum())


def test_gradient_of_superposition():
    """It is linear in each argument: the gradient with respect to an action is the result of that action alone."""
    generator = np.random.default_rng(3)
    stack, direction, new = *generator.normal(size=(2, T, W)), generator.normal(size=W)
    point = [jnp.asarray(x, jnp.float32) for x in (stack, new, 0.5, 0.3, 0.2)]
    got = jax.grad(lambda *arguments: jnp.sum(superposition_stack(*arguments) * direction), argnums=tuple(range(5)))(
        *point
    )
    for which, actions in enumerate(np.eye(3)):
        exact = np.sum(superposition_twin(stack, new, *actions) * direction)
        np.testing.assert_allclose(got[2 + which], exact, atol=1e-5)
    np.testing.assert_allclose(got[1], 0.5 * direction[0], atol=1e-6)
    down = np.concatenate([direction[1:], np.zeros((1, W))])
    up = np.concatenate([np.zeros((1, W)), direction[:-1]])
    np.testing.assert_allclose(got[0], 0.5 * down + 0.3 * up + 0.2 * direction, atol=1e-6)


def test_leading_axes_are_rows():
    generator = np.random.default_rng(4)
    stack, new = generator.normal(size=(2, 3, T, W)), generator.normal(size=(2, 3, W))
    push, pop, strengths = *generator.uniform(size=(2, 2, 3)), generator.uniform(size=(2, 3, T))
    calls = [
        (superposition_stack, (stack, new, push, pop)),
        (lambda s, d, u: stack_update(s, d, u, 4), (strengths, push, pop)),
        (stack_read_weights, (strengths,)),
    ]
    for function, arguments in calls:
        one = function(*(jnp.asarray(argument[1, 2]) for argument in arguments))
        np.testing.assert_allclose(function(*map(jnp.asarray, arguments))[1, 2], one, atol=1e-6)
