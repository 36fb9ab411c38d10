"""The interface of tasks: keys, sources, losses and metrics, against NumPy twins."""

from __future__ import annotations

import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_softmax

from lenmem.keys import namespaced
from lenmem.tasks.base import (
    FreshSource,
    GrowingSource,
    RepeatedSource,
    Split,
    Task,
    draw,
    exact_match,
    fraction_right,
    growing_source,
    masked_loss,
    masked_mean,
    token_accuracy,
)
from lenmem.types import Batch, Example, Spec


@dataclasses.dataclass(frozen=True)
class Noise(Task):
    """Uniform tokens that are their own answer. Written like a subclass outside of the library."""

    @property
    def train_lengths(self) -> tuple[int, int]:
        return 8, 12

    @property
    def test_lengths(self) -> tuple[int, int]:
        return 13, 16

    @property
    def spec(self) -> Spec:
        return Spec(vocabulary=50, output_size=50, shared_ids=True)

    def shapes(self, capacity: int) -> tuple[int, int]:
        return capacity, capacity

    def sample(self, key: jax.Array, length: jax.Array | int, capacity: int) -> Example:
        mask = jnp.arange(capacity) < length
        tokens = jnp.where(mask, jax.random.randint(key, (capacity,), 0, 50), 0)
        return Example(tokens, mask, tokens, mask, mask)


class RowLengths(Noise):
    """Every row draws its own length."""

    per_batch_length = False


def assert_same(left: Batch, right: Batch) -> None:
    chex.assert_trees_all_equal(left, right)


def contents(batch: Batch) -> set[tuple[int, ...]]:
    """The first eight tokens of each row: enough to distinguish rows, and never padding."""
    return {tuple(row[:8].tolist()) for row in np.asarray(batch.inputs)}


def test_namespaces_are_distinct_and_reproducible():
    key = jax.random.key(0)
    paths = [(), ("train",), ("test",), ("train", 0), ("train", 1), ("train", "length", 0), ("length", "train", 0)]
    data = [tuple(np.asarray(jax.random.key_data(namespaced(key, *path))).tolist()) for path in paths]
    assert len(set(data)) == len(paths)
    again = [tuple(np.asarray(jax.random.key_data(namespaced(key, *path))).tolist()) for path in paths]
    assert data == again
    traced = jax.jit(lambda step: jax.random.key_data(namespaced(key, "train", step)))(1)
    assert tuple(np.asarray(traced).tolist()) == data[4]


def test_a_batch_is_a_pure_function_of_its_step():
    source = Noise().source("train", 4)
    assert isinstance(source, FreshSource)
    batch = functools.partial(source.batch, jax.random.key(3))
    eager = batch(5)
    assert_same(jax.jit(batch)(5), eager)
    stacked = jax.jit(jax.vmap(batch))(jnp.arange(4, 7))
    assert_same(jax.tree.map(lambda leaf: leaf[1], stacked), eager)


def test_splits_seeds_and_steps_are_disjoint():
    splits: tuple[Split, ...] = ("train", "validation", "test")

    def draws(seed, step):
        return [Noise().source(split, 4).batch(jax.random.key(seed), step) for split in splits]

    program = jax.jit(draws)
    rows = [contents(batch) for seed in (0, 1) for step in (0, 1) for batch in program(seed, step)]
    assert len(set.union(*rows)) == 4 * len(rows)


@pytest.mark.parametrize(("split", "expected"), [("train", (8, 12)), ("validation", (8, 12)), ("test", (13, 16))])
def test_lengths_are_uniform_and_inclusive(split, expected):
    task = Noise()
    assert task.lengths_of(split) == expected
    lengths = np.asarray(jax.jit(lambda key: task.draw_lengths(key, split, (4000,)))(jax.random.key(0)))
    values, counts = np.unique(lengths, return_counts=True)
    assert values.tolist() == list(range(expected[0], expected[1] + 1))
    np.testing.assert_allclose(counts / 4000, 1 / len(values), atol=0.04)
    batch = jax.eval_shape(lambda: task.source(split, 2).batch(jax.random.key(0), 0))
    assert batch.inputs.shape == (2, expected[1])


def test_splits_have_names_that_a_task_may_add_to():
    class More(Noise):
        @property
        def splits(self):
            return super().splits | {"far": (30, 32)}

    assert Noise().splits == {"train": (8, 12), "validation": (8, 12), "test": (13, 16)}
    assert Noise().curve_lengths == tuple(range(8, 17))
    assert More().lengths_of("far") == (30, 32)
    batch = jax.eval_shape(lambda: More().source("far", 2).batch(jax.random.key(0), 0))
    assert batch.inputs.shape == (2, 32)
    with pytest.raises(ValueError, match="'far' is not a split of Noise. Allowed: train, validation, test"):
        Noise().lengths_of("far")


def test_lengths_per_batch_and_per_row():
    shared, own = (
        jax.jit(lambda seed, task=task: task.source("train", 64).batch(jax.random.key(seed), 0).input_mask.sum(-1))
        for task in (Noise(), RowLengths())
    )
    assert len(set(shared(0).tolist())) == 1
    assert set(own(0).tolist()) == set(range(8, 13))
    np.testing.assert_array_equal(own(0), own(1))


def test_rows_of_a_larger_capacity_are_the_same():
    lengths = np.array([3, 5, 4])
    both = jax.jit(lambda key: [draw(Noise(), key, lengths, capacity) for capacity in (5, 9)])
    tight, wide = jax.tree.map(np.asarray, both(jax.random.key(0)))
    np.testing.assert_array_equal(wide.inputs[:, :5], tight.inputs)
    assert not wide.input_mask[:, 5:].any()


def test_lengths_grow_one_by_one_and_then_are_those_of_the_fresh_source():
    first, last = Noise().lengths_of("train")
    count, stage = last - first + 1, 60
    fresh = FreshSource(Noise(), "train", 4)
    grows = growing_source(fresh, stage * count)
    steps = np.arange((count + 1) * stage)
    lengths = np.asarray(jax.jit(jax.vmap(grows.lengths))(steps)).reshape(count + 1, -1)
    for k, drawn in enumerate(lengths):
        assert set(drawn.tolist()) == set(range(first, min(first + k, last) + 1))
    assert np.mean(lengths[1] == first + 1) < 0.6, "longer ones are not all cut to the longest of the time"
    assert np.asarray(grows.lengths(2**31 - 1)).min() >= first  # `step * count` would overflow
    after = stage * count + 3
    both = jax.jit(lambda key, step: [source.batch(key, step) for source in (grows, fresh)])
    chex.assert_trees_all_equal(*both(jax.random.key(1), after))


def test_only_fresh_examples_grow():
    fresh = FreshSource(Noise(), "train", 4)
    assert growing_source(fresh, 0) is fresh
    assert isinstance(growing_source(fresh, 5), GrowingSource)
    with pytest.raises(ValueError, match=r"growing takes at most \d+ steps for these lengths, got 2147483647"):
        growing_source(fresh, 2**31 - 1)
    with pytest.raises(ValueError, match="got RepeatedSource"):
        growing_source(RepeatedSource(fresh, 8), 5)


@pytest.mark.parametrize("shuffle", [False, True])
def test_repeated_source_passes_over_whole_batches(shuffle):
    fresh = FreshSource(Noise(), "train", 4)
    source = RepeatedSource(fresh, 23, shuffle)  # five whole batches; the other three are never used
    batch = jax.jit(functools.partial(source.batch, jax.random.key(0)))
    passes = [[frozenset(contents(batch(5 * p + i))) for i in range(5)] for p in range(4)]
    drawn = jax.jit(functools.partial(fresh.batch, jax.random.key(0)))
    expected = [frozenset(contents(drawn(i))) for i in range(5)]
    for order in passes:
        assert set(order) == set(expected)
    assert all(order == expected for order in passes) is not shuffle
    assert len(set(map(tuple, passes))) == (4 if shuffle else 1)


def test_repeated_source_orders_do_not_depend_on_the_seed():
    def lengths(seed):
        source = RepeatedSource(FreshSource(Noise(), "train", 2), 16)
        return jax.vmap(lambda step: source.batch(jax.random.key(seed), step).input_mask.sum(-1))(jnp.arange(9))

    both = jax.jit(jax.vmap(lengths))(jnp.arange(2))
    np.testing.assert_array_equal(both[0], both[1])


def test_repeated_source_needs_a_whole_batch():
    with pytest.raises(ValueError, match="fixed set of 3 examples is smaller than a batch of 4"):
        RepeatedSource(FreshSource(Noise(), "train", 4), 3).batch(jax.random.key(0), 0)


def answers(kind: str, seed: int = 0):
    """Random outputs [3, 5, 4], and a batch with prefix masks, in which fewer slots are scored than asked for."""
    rng = np.random.default_rng(seed)
    outputs = rng.normal(size=(3, 5, 4)).astype(np.float32)
    targets = {
        "tokens": rng.integers(0, 4, (3, 5)),
        "multi_hot": rng.integers(0, 2, (3, 5, 4)).astype(np.float32),
        "real": rng.normal(size=(3, 5, 4)).astype(np.float32),
    }[kind]
    asked = np.arange(5) < np.array([[5], [3], [4]])
    score = asked & (np.arange(5) < 4)
    read = np.zeros((3, 2), int), np.ones((3, 2), bool)
    if kind == "tokens":
        targets = targets.astype(np.int32)
    return outputs, Batch(*read, targets, asked, score)


def twin_loss(kind, outputs, batch):
    total, count = 0.0, 0
    for b, m in zip(*np.nonzero(batch.score_mask), strict=True):
        o, t = outputs[b, m].astype(float), batch.targets[b, m]
        if kind == "tokens":
            total -= log_softmax(o)[t]
        elif kind == "multi_hot":
            p = 1 / (1 + np.exp(-o))
            total -= np.mean(t * np.log(p) + (1 - t) * np.log(1 - p))
        else:
            total += np.mean((o - t) ** 2)
        count += 1
    return total / count


@pytest.mark.parametrize("kind", ["tokens", "multi_hot", "real"])
def test_masked_loss(kind):
    outputs, batch = answers(kind)
    both = jax.jit(lambda o, batch: jax.value_and_grad(lambda o: masked_loss(kind, o, batch))(o))
    value, gradient = both(outputs, batch)
    assert float(value) == pytest.approx(twin_loss(kind, outputs, batch), rel=1e-5)
    assert not np.asarray(gradient)[~batch.score_mask].any()
    assert (np.abs(np.asarray(gradient)[batch.score_mask]).sum(-1) > 0).all()
    # neither value nor gradient may depend on padding, not even if it is NaN
    bad_outputs = np.where(batch.score_mask[..., None], outputs, np.float32(np.nan))
    slots = batch.score_mask if kind == "tokens" else batch.score_mask[..., None]
    filler = np.asarray(-99 if kind == "tokens" else np.nan, batch.targets.dtype)
    same_value, same_gradient = both(bad_outputs, batch._replace(targets=np.where(slots, batch.targets, filler)))
    assert float(same_value) == float(value)
    np.testing.assert_array_equal(same_gradient, gradient)
    halves = jax.eval_shape(lambda: masked_loss(kind, outputs.astype(jnp.bfloat16), batch))
    assert halves.dtype == jnp.float32


def test_metrics_are_per_example():
    _, batch = answers("tokens")
    right = np.eye(4, dtype=np.float32)[np.asarray(batch.targets)]
    sign = np.ones((3, 5, 1), np.float32)
    sign[0, 4] = -1  # asked, but not scored
    sign[1] = -1
    sign[2, 1] = -1
    outputs = sign * right
    np.testing.assert_allclose(token_accuracy(outputs, batch), [1, 0, 0.75])
    np.testing.assert_array_equal(exact_match(outputs, batch), [1, 0, 0])
    numbers = batch._replace(score_mask=batch.score_mask.astype(np.int32))
    np.testing.assert_array_equal(exact_match(outputs, numbers), [1, 0, 0])
    metrics = Noise().metrics(outputs, batch)
    assert set(metrics) == {"token_accuracy", "exact_match"}
    assert float(Noise().loss(outputs, batch)) == pytest.approx(twin_loss("tokens", outputs, batch), rel=1e-5)


def test_an_accuracy_is_exactly_1_if_all_is_right():
    """A mean that XLA computes with a reciprocal is 0.99999994 for 41, 47, 55 and other numbers of slots."""
    mask = np.arange(128) < np.arange(1, 129)[:, None]
    assert jax.jit(fraction_right)(mask, mask).tolist() == [1.0] * 128
    np.testing.assert_allclose(jax.jit(fraction_right)(~mask, mask), 0, atol=1e-6)
    assert jax.jit(fraction_right)(mask, np.zeros_like(mask)).tolist() == [1.0] * 128  # nothing is asked


def test_masked_mean_of_nothing_is_zero():
    values = jnp.array([[1.0, jnp.nan], [jnp.nan, jnp.nan]])
    mask = jnp.array([[True, False], [False, False]])
    np.testing.assert_array_equal(masked_mean(values, mask, axis=-1), [1, 0])
    assert float(masked_mean(values, mask)) == 1


def test_base_class_leaves_the_rest_to_subclasses():
    task = Task()
    for call in (
        lambda: task.spec,
        lambda: task.train_lengths,
        lambda: task.test_lengths,
        lambda: task.shapes(3),
        lambda: task.sample(jax.random.key(0), 3, 3),
    ):
        with pytest.raises(NotImplementedError):
            call()
