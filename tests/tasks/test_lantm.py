"""The eight LANTM tasks: golden examples, an independent solver, lengths, splits and regimes."""

from __future__ import annotations

import dataclasses
import functools
import pickle

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lenmem import tasks
from lenmem.tasks.base import Split, draw
from lenmem.tasks.lantm import Doubled, LantmTask, add_digits
from lenmem.types import Batch, Example

V = 128
PAPER = {  # Table 1a: tokens, training sizes, 2x test sizes
    "copy": (128, (2, 64), (65, 128)),
    "reverse": (128, (2, 64), (65, 128)),
    "bigram_flip": (128, (1, 16), (17, 32)),
    "double": (10, (2, 40), (41, 80)),
    "interleaved_add": (10, (2, 16), (17, 32)),
    "odd_first": (128, (1, 16), (17, 32)),
    "repeat_copy": (128, (1, 5), (6, 10)),
    "priority_sort": (128, (2, 10), (11, 20)),
}
VARIANTS = [
    *((name, {}) for name in PAPER),
    ("double", {"most_significant_first": True}),
    ("double", {"vocabulary": 3}),
    ("interleaved_add", {"vocabulary": 2}),
    ("repeat_copy", {"sequence_length": 3, "vocabulary": 5}),
    ("priority_sort", {"first_priority": 0}),
    ("priority_sort", {"unary": False}),
]
variants = pytest.mark.parametrize(("name", "fields"), VARIANTS, ids=lambda value: str(value).replace(" ", ""))


def make(name, **fields) -> LantmTask:
    task = tasks.make(name, **fields)
    assert isinstance(task, LantmTask)
    return task


def digits_to_int(digits, base):
    return sum(int(digit) * base**place for place, digit in enumerate(digits))


def int_to_digits(number, base, places):
    digits = []
    for _ in range(places):
        number, digit = divmod(number, base)
        digits.append(digit)
    assert number == 0
    return digits


def priorities_and_values(task, tokens):
    """Decodes a priority_sort input: (priority, value) pairs."""
    if not task.unary:
        assert all(token >= task.vocabulary for token in tokens[::2])
        return [(p - task.vocabulary + task.first_priority, v) for p, v in zip(tokens[::2], tokens[1::2], strict=True)]
    pairs, count = [], 0
    for token in tokens:
        if token == task.vocabulary:
            count += 1
        else:
            pairs.append((count, token))
            count = 0
    assert count == 0
    return pairs


def solve(task, tokens, length):
    """The answer to an input, in plain Python by other means; also checks that the input is well formed."""
    base = task.vocabulary
    match type(task).__name__:
        case "Copy":
            assert len(tokens) == length
            return list(tokens)
        case "Reverse":
            assert len(tokens) == length
            return list(reversed(tokens))
        case "BigramFlip":
            assert len(tokens) == 2 * length
            return [token for i in range(0, len(tokens), 2) for token in (tokens[i + 1], tokens[i])]
        case "OddFirst":
            assert len(tokens) == 2 * length
            return tokens[0::2] + tokens[1::2]
        case "Double":
            assert len(tokens) == length
            order = -1 if task.most_significant_first else 1
            return int_to_digits(2 * digits_to_int(tokens[::order], base), base, length + 1)[::order]
        case "InterleavedAdd":
            assert len(tokens) == 2 * length
            return int_to_digits(
                digits_to_int(tokens[0::2], base) + digits_to_int(tokens[1::2], base), base, length + 1
            )
        case "RepeatCopy":
            assert tokens[:length] == [base] * length
            assert len(tokens) == length + task.sequence_length
            return tokens[length:] * length
        case "PrioritySort":
            pairs = priorities_and_values(task, tokens)
            assert sorted(p for p, _ in pairs) == list(range(task.first_priority, task.first_priority + length))
            return [value for _, value in sorted(pairs)]
        case other:
            raise AssertionError(f"no solver for {other}")


# name, fields, length, the tokens drawn, the noise drawn (priority_sort), input, answer without the end symbol
GOLDEN = [
    ("copy", {}, 3, [5, 0, 127, 9], None, [5, 0, 127], [5, 0, 127]),
    ("reverse", {}, 3, [5, 0, 127, 9], None, [5, 0, 127], [127, 0, 5]),
    ("bigram_flip", {}, 2, [1, 2, 3, 4, 5, 6, 7, 8], None, [1, 2, 3, 4], [2, 1, 4, 3]),
    ("odd_first", {}, 3, [1, 2, 3, 4, 5, 6, 7, 8], None, [1, 2, 3, 4, 5, 6], [1, 3, 5, 2, 4, 6]),
    # 2 x 759 = 1518, 2 x 5 = 010, the published example 9031 -> 18062
    ("double", {}, 3, [9, 5, 7, 8], None, [9, 5, 7], [8, 1, 5, 1]),
    ("double", {}, 2, [5, 0, 9, 9], None, [5, 0], [0, 1, 0]),
    ("double", {"most_significant_first": True}, 4, [1, 3, 0, 9], None, [9, 0, 3, 1], [1, 8, 0, 6, 2]),
    # 19 + 81 = 100, 999 + 1 = 1000, 12 + 34 = 046
    ("interleaved_add", {}, 2, [9, 1, 1, 8, 7, 7, 7, 7], None, [9, 1, 1, 8], [0, 0, 1]),
    ("interleaved_add", {}, 3, [9, 1, 9, 0, 9, 0, 5, 5], None, [9, 1, 9, 0, 9, 0], [0, 0, 0, 1]),
    ("interleaved_add", {}, 2, [2, 4, 1, 3, 9, 9, 9, 9], None, [2, 4, 1, 3], [6, 4, 0]),
    ("repeat_copy", {"sequence_length": 3}, 2, [7, 7, 1], None, [V, V, 7, 7, 1], [7, 7, 1, 7, 7, 1]),
    # priorities 2, 3, 1 with the values 70, 80, 70
    ("priority_sort", {}, 3, [70, 80, 70, 1], [0.5, 0.8, 0.1, 0.0], [V, V, 70, V, V, V, 80, V, 70], [70, 70, 80]),
    ("priority_sort", {}, 2, [3, 4, 9, 9], [0.9, 0.2, 0.1, 0.0], [V, V, 3, V, 4], [4, 3]),
    ("priority_sort", {"first_priority": 0}, 2, [3, 4, 9, 9], [0.9, 0.2, 0.1, 0.0], [V, 3, 4], [4, 3]),
    ("priority_sort", {"unary": False}, 2, [3, 4, 9, 9], [0.9, 0.2, 0.1, 0.0], [V + 1, 3, V, 4], [4, 3]),
    # equal noise: still a permutation
    ("priority_sort", {}, 3, [5, 6, 7, 8], [0.5, 0.5, 0.5, 0.5], [V, 5, V, V, 6, V, V, V, 7], [5, 6, 7]),
]


@pytest.mark.parametrize(("name", "fields", "length", "drawn", "noise", "inputs", "answer"), GOLDEN)
def test_golden(monkeypatch, name, fields, length, drawn, noise, inputs, answer):
    task = make(name, **fields)
    monkeypatch.setattr(LantmTask, "tokens", lambda self, key, *shape: jnp.asarray(drawn, jnp.int32).reshape(shape))
    monkeypatch.setattr(jax.random, "uniform", lambda key, shape: jnp.asarray(noise).reshape(shape))
    example = task.sample(jax.random.key(0), length, 4)
    got = decode(example)
    assert got == (inputs, [*answer, task.spec.end_id])
    assert solve(task, inputs, length) == answer


def decode(example):
    return (
        np.asarray(example.inputs)[np.asarray(example.input_mask)].tolist(),
        np.asarray(example.targets)[np.asarray(example.target_mask)].tolist(),
    )


def rows(batch):
    """The examples of a batch, on the host."""
    batch = jax.tree.map(np.asarray, batch)
    return [type(batch)(*(leaf[i] for leaf in batch)) for i in range(batch.inputs.shape[0])]


def is_prefix(mask):
    return bool((np.diff(mask.astype(int), axis=-1) <= 0).all())


@functools.cache
def keys_of(count):
    """The data of the keys of `drawn`."""
    return np.asarray(jax.random.key_data(jax.jit(lambda: jax.random.split(jax.random.key(1), count))()))


@functools.cache
def drawn(task):
    """At least 4000 examples over all lengths, equally many of each, drawn by one program: (lengths, batch on the
    host)."""
    every = np.arange(task.train_lengths[0], task.test_lengths[1] + 1)
    lengths = np.tile(every, -(-4000 // len(every)))
    program = jax.jit(lambda key: draw(task, key, jnp.asarray(lengths), task.test_lengths[1]))
    return lengths, jax.tree.map(np.asarray, program(jax.random.key(1)))


@variants
def test_against_solver_at_every_length(name, fields):
    task = make(name, **fields)
    longest = task.test_lengths[1]
    lengths, batch = drawn(task)
    size, slots = task.shapes(longest)
    assert batch.inputs.shape == (len(lengths), size)
    assert batch.targets.shape == (len(lengths), slots)
    assert batch.inputs.dtype == batch.targets.dtype == jnp.int32
    assert is_prefix(np.asarray(batch.input_mask))
    assert is_prefix(np.asarray(batch.target_mask))
    spec = task.spec
    contents = set()
    for length, example in zip(lengths.tolist(), rows(batch), strict=True):
        inputs, targets = decode(example)
        assert targets == [*solve(task, inputs, length), spec.end_id]
        assert (len(inputs), len(targets)) == task.shapes(length)
        assert 0 <= min(inputs) and max(inputs) < spec.vocabulary
        assert not example.inputs[~example.input_mask].any()
        assert not example.targets[~example.target_mask].any()
        np.testing.assert_array_equal(example.score_mask, example.target_mask)
        contents.update(token for token in inputs if token < task.vocabulary)
    assert contents == set(range(task.vocabulary))


@variants
def test_capacity_changes_padding_only(name, fields):
    """Also: neither compiling nor a traced length changes anything."""
    task = make(name, **fields)
    length = task.train_lengths[0] + 2
    lengths, batch = drawn(task)
    at = int(np.flatnonzero(lengths == length)[-1])
    key = jax.random.wrap_key_data(keys_of(len(lengths))[at])
    tight = jax.tree.map(np.asarray, task.sample(key, length, length))  # not compiled as a whole, concrete length
    size, slots = task.shapes(length)
    assert tight.input_mask.all() and tight.target_mask.all()
    for field, cut in zip(Example._fields, (size, size, slots, slots, slots), strict=True):
        wide = getattr(batch, field)[at]
        np.testing.assert_array_equal(wide[:cut], getattr(tight, field))
        assert not wide[cut:].any()


@variants
def test_spec(name, fields):
    task = make(name, **fields)
    spec = task.spec
    assert spec == make(name, **fields).spec
    assert hash(task) == hash(make(name, **fields))
    assert spec.vocabulary == task.vocabulary + task.symbols
    assert (spec.output_size, spec.end_id) == (spec.vocabulary + 1, spec.vocabulary)
    assert spec.shared_ids and spec.takes_tokens and spec.length_rule == "given"
    assert spec.shapes is not None and spec.shapes(7) == task.shapes(7)
    assert set(task.metrics(jnp.zeros((2, 3, 4)), dummy_batch())) == {"token_accuracy", "exact_match"}


def dummy_batch():
    mask = jnp.ones((2, 3), bool)
    return Batch(jnp.zeros((2, 3), int), mask, jnp.zeros((2, 3), int), mask, mask)


@pytest.mark.parametrize("name", PAPER)
def test_sizes_of_the_paper(name):
    task = make(name)
    assert (task.vocabulary, task.train_lengths, task.test_lengths) == PAPER[name]
    assert task.symbols == (1 if name in ("repeat_copy", "priority_sort") else 0)


def test_static_sizes():
    shapes = {
        "copy": (9, 10),
        "reverse": (9, 10),
        "bigram_flip": (18, 19),
        "odd_first": (18, 19),
        "double": (9, 11),
        "interleaved_add": (18, 11),
        "repeat_copy": (29, 181),
        "priority_sort": (54, 10),
    }
    assert {name: make(name).shapes(9) for name in PAPER} == shapes
    assert make("priority_sort", first_priority=0).shapes(9) == (45, 10)
    assert make("priority_sort", unary=False).shapes(9) == (18, 10)


@variants
def test_chance_is_the_best_constant_answer(name, fields):
    task = make(name, **fields)
    lengths, batch = drawn(task)
    trained = lengths <= task.train_lengths[1]
    targets, mask = batch.targets[trained], batch.target_mask[trained]
    accuracy = [(((targets == answer) & mask).sum(1) / mask.sum(1)).mean() for answer in range(task.spec.output_size)]
    assert task.spec.chance == pytest.approx(max(accuracy), abs=0.01)


def test_add_digits_carries_through_every_place():
    rng = np.random.default_rng(0)
    for base in (2, 3, 10):
        # make sums of base - 1 frequent, so that carries run far
        x = rng.integers(0, base, (200, 30))
        y = np.where(rng.random((200, 30)) < 0.8, base - 1 - x, rng.integers(0, base, (200, 30)))
        got = np.asarray(jax.jit(jax.vmap(lambda a, b, base=base: add_digits(a, b, base)))(x, y))
        for a, b, c in zip(x, y, got, strict=True):
            assert c.tolist() == int_to_digits(digits_to_int(a, base) + digits_to_int(b, base), base, 31)


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_lengths_of_batches(split):
    task = make("copy", train_lengths=(2, 5))
    source = task.source(split, 3)
    lengths = np.asarray(
        jax.jit(jax.vmap(lambda step: source.batch(jax.random.key(0), step).input_mask.sum(-1)))(jnp.arange(200))
    )
    assert (lengths == lengths[:, :1]).all(), "the rows of a batch share one length"
    assert set(lengths[:, 0]) == (set(range(6, 11)) if split == "test" else set(range(2, 6)))


def test_seeds_share_lengths_but_not_contents():
    task = make("copy")
    batch = jax.jit(jax.vmap(lambda seed: task.source("train", 4).batch(jax.random.key(seed), 7)))(jnp.arange(3))
    np.testing.assert_array_equal(batch.input_mask, jnp.broadcast_to(batch.input_mask[:1], batch.input_mask.shape))
    first = {tuple(row) for seed in np.asarray(batch.inputs) for row in seed}
    assert len(first) == 12


def batches(task, split, seeds, steps):
    """The first batches of four of the seeds 0, 1, ..., drawn by one program."""
    program = jax.jit(lambda seed, step: task.source(split, 4).batch(jax.random.key(seed), step))
    return [program(seed, step) for seed in range(seeds) for step in range(steps)]


@pytest.mark.parametrize("name", ["copy", "interleaved_add"])
def test_splits_steps_and_rows_never_repeat(name):
    """Draws are prefix-stable: without namespaces a training example would be the beginning of a test example."""
    task = make(name, train_lengths=(12, 12), test_lengths=(24, 24))
    seen = []
    for split in ("train", "validation", "test"):
        for batch in batches(task, split, seeds=2, steps=3):
            for row in rows(batch):
                inputs = [token for token in decode(row)[0] if token < task.vocabulary]
                seen.append(tuple(inputs[:12]))
    assert len(set(seen)) == len(seen) == 72


def test_small_regime_repeats_its_set():
    task = make("copy", regime="S", small_set=24, train_lengths=(8, 12))
    train = [jax.tree.map(np.asarray, batch) for batch in batches(task, "train", seeds=1, steps=18)]
    for step in range(6, 18):
        chex.assert_trees_all_equal(train[step], train[step % 6])
    assert len({row.tobytes() for batch in train for row in batch.inputs}) == 24
    for split in ("validation", "test"):
        fresh = batches(task, split, seeds=1, steps=12)
        assert len({row.tobytes() for batch in fresh for row in np.asarray(batch.inputs)}) == 48


def test_small_regime_may_shuffle_its_passes():
    task = make("reverse", regime="S", small_set=40, shuffle_passes=True, train_lengths=(8, 12))
    source = jax.jit(functools.partial(task.source("train", 4).batch, jax.random.key(0)))
    passes = [[np.asarray(source(10 * p + i).inputs).tobytes() for i in range(10)] for p in range(3)]
    assert set(passes[0]) == set(passes[1]) == set(passes[2])
    assert len(set(passes[0])) == 10
    assert len(set(map(tuple, passes))) == 3


def test_large_regime_never_repeats():
    source = jax.jit(functools.partial(make("copy", train_lengths=(8, 12)).source("train", 4).batch, jax.random.key(0)))
    assert len({row.tobytes() for step in range(50) for row in np.asarray(source(step).inputs)}) == 200


def test_paper_sizes_of_the_small_regime():
    task = make("copy", regime="S")
    batch = jax.jit(functools.partial(task.source("train", 32).batch, jax.random.key(0)))
    chex.assert_trees_all_equal(batch(3), batch(503))
    assert (np.asarray(batch(3).inputs) != np.asarray(batch(4).inputs)).any()


@pytest.mark.parametrize("name", ["bigram_flip", "odd_first"])
def test_published_lengths(name):
    task = make(name, published_lengths=True)
    assert (task.train_lengths, task.test_lengths) == ((1, 16), (16, 32))
    assert dataclasses.replace(task, published_lengths=False).test_lengths == (17, 32)
    draws = 62_000
    published: list[tuple[Split, range]] = [("train", range(2, 33)), ("test", range(33, 65))]
    for split, tokens in published:
        expected = np.bincount([token // 2 for token in tokens], minlength=33) / len(tokens)
        lengths = jax.jit(lambda key, split=split: task.draw_lengths(key, split, (draws,)))(jax.random.key(0))
        got = np.bincount(np.asarray(lengths), minlength=33) / draws
        np.testing.assert_array_equal(got > 0, expected > 0)
        np.testing.assert_allclose(got, expected, atol=0.005)
    source = task.source("test", 2)
    sizes = jax.jit(jax.vmap(lambda step: source.batch(jax.random.key(0), step).input_mask.sum(-1)[0]))(jnp.arange(300))
    assert set(np.asarray(sizes)) == set(range(32, 65, 2))


def test_priorities_are_uniform_permutations():
    task = make("priority_sort", train_lengths=(3, 3))
    keys = jax.random.split(jax.random.key(0), 3000)
    batch = jax.jit(jax.vmap(lambda key: task.sample(key, 3, 5)))(keys)
    orders = [tuple(p for p, _ in priorities_and_values(task, decode(row)[0])) for row in rows(batch)]
    counts = [orders.count(order) for order in set(orders)]
    assert len(counts) == 6
    assert min(counts) > 400 and max(counts) < 600


def test_priority_tokens_are_bounded():
    task = make("priority_sort", unary=False, max_priority=20)
    assert task.spec.vocabulary == 148
    for call in (lambda: task.shapes(21), lambda: task.sample(jax.random.key(0), 3, 21)):
        with pytest.raises(ValueError, match="length 21 .* max_priority=20"):
            call()
    with pytest.raises(ValueError, match="max_priority=8"):
        make("priority_sort", unary=False, max_priority=8)


def test_test_range_follows_the_training_range():
    task = make("copy", train_lengths=(2, 16))
    assert task.test_lengths == (17, 32)
    assert dataclasses.replace(task, train_lengths=(2, 8)).test_lengths == (9, 16)
    chosen = make("copy", train_lengths=(2, 16), test_lengths=(40, 50))
    assert dataclasses.replace(chosen, train_lengths=(2, 8)).test_lengths == (40, 50)
    assert task == make("copy", train_lengths=(2, 16), test_lengths=(17, 32))
    copied = pickle.loads(pickle.dumps(task))
    assert copied == task and isinstance(copied.test_lengths, Doubled)
    assert repr(task.test_lengths) == "(17, 32)"


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("copy", {"train_lengths": (5, 2)}, r"train_lengths is \(5, 2\)"),
        ("copy", {"train_lengths": (0, 2)}, r"train_lengths is \(0, 2\)"),
        ("copy", {"test_lengths": (9, 3)}, r"test_lengths is \(9, 3\)"),
        ("copy", {"vocabulary": 1}, "vocabulary is 1"),
        ("copy", {"regime": "M"}, "regime is 'M'; allowed are L, S"),
        ("priority_sort", {"first_priority": -1}, "first_priority is -1"),
    ],
)
def test_impossible_fields(name, fields, message):
    with pytest.raises(ValueError, match=message):
        make(name, **fields)


def test_registry():
    assert tasks.names()[: len(PAPER)] == tuple(PAPER)
    assert tasks.make("copy", train_lengths=[2, 16]) == tasks.Copy(train_lengths=(2, 16))
    hash(tasks.make("copy", train_lengths=[2, 16]))
    nearest = r"'revrse' is not a task. Did you mean 'reverse', 'panm_reverse' or 'reverse_string'\?"
    with pytest.raises(ValueError, match=nearest):
        tasks.make("revrse")
    with pytest.raises(ValueError, match=r"'train_length' is not a field of the task 'copy'. Did you mean 'train_len"):
        tasks.make("copy", train_length=(2, 3))
    with pytest.raises(ValueError, match=r"'zzz' is not a task. There are \d+, such as copy, .*: lenmem list"):
        tasks.make("zzz")
