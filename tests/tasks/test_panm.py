"""The six tasks of Pointer-Augmented Neural Memory: decoded from their inputs and solved in plain Python."""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lenmem import models
from lenmem.serialize import from_plain, to_plain
from lenmem.tasks.base import draw
from lenmem.tasks.panm import (
    DynamicRecall,
    IDSort,
    Mix,
    PanmCopy,
    PanmPrioritySort,
    PanmReverse,
    PanmTask,
    most_in_a_cell,
    neighbour_ceiling,
)
from lenmem.types import Batch
from tests.learning import briefly

TASKS: list[PanmTask] = [
    PanmCopy(),
    PanmReverse(),
    Mix(),
    Mix(rule="example"),
    Mix(first_step=0),
    DynamicRecall(),
    DynamicRecall(left="odd", ends="avoid"),
    DynamicRecall(occurrence="first", ends="avoid"),
    DynamicRecall(occurrence="last", answer="rest"),
    DynamicRecall(ends="avoid", answer="rest"),
    PanmPrioritySort(),
    PanmPrioritySort(descending=True),
    IDSort(),
    IDSort(alone="zero", id_size=3),
]
DEFAULTS = [task for task in TASKS if task == type(task)()]
LENGTHS = np.repeat([1, 2, 3, 4, 5, 6, 9, 10, 11, 20, 21], 24)
CAPACITY = 22
SYMBOLS = "!@#$%^&*()"
"""The tokens as Table 6 writes them."""


def name_of(task: PanmTask) -> str:
    changed = [
        f"{field.name}={getattr(task, field.name)}"
        for field in dataclasses.fields(task)
        if getattr(task, field.name) != field.default
    ]
    return "-".join([type(task).__name__, *changed])


every_variant = pytest.mark.parametrize("task", TASKS, ids=name_of)
every_task = pytest.mark.parametrize("task", DEFAULTS, ids=name_of)


@functools.cache
def drawing(task: PanmTask, capacity: int):
    """(key, lengths) -> batch, compiled."""
    return briefly(lambda key, lengths: draw(task, key, lengths, capacity))


@functools.cache
def drawn(task: PanmTask, capacity: int = CAPACITY) -> Batch:
    """Examples of `LENGTHS`."""
    return jax.tree.map(np.asarray, drawing(task, capacity)(jax.random.key(0), jnp.asarray(LENGTHS)))


def many(task: PanmTask, lengths: np.ndarray) -> Batch:
    """Many examples of these lengths, drawn by the program of `drawn` and without padding that all rows have."""
    count, size = len(lengths), len(LENGTHS)
    parts = np.resize(lengths, (-(-count // size), size))
    drawn = [jax.tree.map(np.asarray, drawing(task, CAPACITY)(jax.random.key(3 + i), n)) for i, n in enumerate(parts)]
    inputs, slots = task.shapes(int(max(lengths)))
    whole = Batch(*(np.concatenate(leaves)[:count] for leaves in zip(*drawn, strict=True)))
    return Batch(*(leaf[:, :n] for leaf, n in zip(whole, (inputs, inputs, slots, slots, slots), strict=True)))


def row(batch: Batch, i: int) -> Batch:
    return type(batch)(*(leaf[i] for leaf in batch))


# --- against plain Python ---------------------------------------------------------------------------------------------


def read(task: PanmTask, example: Batch) -> tuple[list[int], list[tuple[float, ...]]]:
    """Tokens and features of an input."""
    inputs = example.inputs[example.input_mask]
    if not task.channels:
        return inputs.tolist(), []
    one_hot, features = inputs[:, : task.vocabulary], inputs[:, task.vocabulary :]
    assert set(one_hot.ravel()) <= {0, 1} and (one_hot.sum(1) == 1).all()
    assert features.shape[1] == task.channels
    return one_hot.argmax(1).tolist(), [tuple(item) for item in features.tolist()]


def recalled(task: DynamicRecall, tokens: list[int]) -> list[list[int]]:
    """All answers that are possible for the last token."""
    *tokens, query = tokens
    length = len(tokens)
    step = -1 if (length % 2 == 0) == (task.left == "even") else 1
    places = [i for i, token in enumerate(tokens) if token == query]
    if task.ends == "avoid" and length > 1:
        places = [i for i in places if 0 <= i + step < length]
    if task.occurrence != "any":
        places = [min(places) if task.occurrence == "first" else max(places)]
    starts = [(i + step) % length for i in places]
    return [tokens[start : start + 1] if task.answer == "one" else tokens[start:] for start in starts]


def solve(task: PanmTask, tokens: list[int], features: list[tuple[float, ...]]) -> list[int]:
    """The answer, in lists. Also checks that ids are well formed."""
    match task:
        case PanmReverse():
            return tokens[::-1]
        case Mix(rule="formula"):
            middle = tokens[-(-len(tokens) // 2) - 1]
            return [middle if t % 2 else tokens[0] for t, _ in enumerate(tokens, task.first_step)]
        case Mix():
            return [tokens[0] if t % 2 else token for t, token in enumerate(tokens, task.first_step)]
        case PanmPrioritySort():
            pairs = sorted(zip(features, tokens, strict=True), reverse=task.descending)
            return [token for _, token in pairs]
        case IDSort():
            holders = collections.defaultdict(list)
            for place, identity in enumerate(features):
                holders[identity].append(place)
            assert sorted(map(len, holders.values())) == [1] * (len(tokens) % 2) + [2] * (len(tokens) // 2)
            answer = []
            for place, identity in enumerate(features):
                others = [other for other in holders[identity] if other != place]
                alone = 0 if task.alone == "zero" else tokens[place]
                answer.append(tokens[others[0]] if others else alone)
            return answer
        case _:
            return tokens


def check(task: PanmTask, example: Batch, length: int) -> None:
    """Whether the example is valid for the task."""
    tokens, features = read(task, example)
    assert len(tokens) == length + isinstance(task, DynamicRecall)
    targets = example.targets[example.score_mask].tolist()
    if isinstance(task, DynamicRecall):
        assert targets in recalled(task, tokens)
    else:
        assert targets == solve(task, tokens, features)
    np.testing.assert_array_equal(example.target_mask, example.score_mask)
    for mask in (example.input_mask, example.target_mask):
        assert (np.diff(mask.astype(int)) <= 0).all()
    assert not example.inputs[~example.input_mask].any() and not example.targets[~example.score_mask].any()


@every_variant
def test_against_lists(task):
    tokens = set()
    for i, length in enumerate(LENGTHS):
        example = row(drawn(task), i)
        check(task, example, length)
        tokens |= set(read(task, example)[0])
    assert tokens == set(range(10))


@given(index=st.integers(0, len(TASKS) - 1), length=st.integers(1, CAPACITY), seed=st.integers(0, 2**31 - 1))
@settings(max_examples=40, deadline=None)
def test_any_length_and_key(index, length, seed):
    task, lengths = TASKS[index], jnp.full(len(LENGTHS), length, jnp.int32)
    batch = jax.tree.map(np.asarray, drawing(task, CAPACITY)(jax.random.key(seed), lengths))
    for i in range(4):
        check(task, row(batch, i), length)


@pytest.mark.parametrize(
    ("task", "wanted"), [(PanmReverse(), "#%@^%$&&%$"), (Mix(rule="example"), "$%$&$%$@$#")], ids=str
)
def test_the_examples_of_table_6(task, wanted):
    tokens = jnp.asarray([SYMBOLS.index(symbol) for symbol in "$%&&$%^@%#"])
    problem = task.problem(jax.random.key(0), tokens, 10)
    assert "".join(SYMBOLS[token] for token in problem.answer) == wanted


def test_dynamic_recall_as_in_table_6():
    tokens = jnp.asarray([SYMBOLS.index(symbol) for symbol in "$(&&$#^@%#"])

    @briefly
    @jax.vmap
    def recall(key):
        problem = DynamicRecall().problem(key, tokens, 10)
        return problem.inputs[-1], problem.answer

    queries, answers = map(np.asarray, recall(jax.random.split(jax.random.key(0), 100)))
    assert len(set(queries.tolist())) == 7 and answers.shape == (100, 1)
    assert {SYMBOLS[answer] for answer in answers[queries == SYMBOLS.index("%"), 0]} == {"@"}


def test_mix_by_hand():
    tokens, key = jnp.asarray([3, 1, 4, 5, 9]), jax.random.key(0)
    assert Mix().problem(key, tokens, 5).answer.tolist() == [4, 3, 4, 3, 4]
    assert Mix().problem(key, tokens, 4).answer[:4].tolist() == [1, 3, 1, 3]
    assert Mix(first_step=0).problem(key, tokens, 4).answer[:4].tolist() == [3, 1, 3, 1]


# --- what is random ---------------------------------------------------------------------------------------------------


def uniform(counts: collections.Counter, cases: int) -> bool:
    """All cases occur equally often, within 5 standard deviations."""
    samples, share = counts.total(), 1 / cases
    spread = (share * (1 - share) / samples) ** 0.5
    return len(counts) == cases and all(abs(count / samples - share) < 5 * spread for count in counts.values())


@every_task
def test_tokens_are_uniform_and_independent(task):
    batch = many(task, np.full(4000, 4))
    tokens = batch.inputs[:, :4] if not task.channels else batch.inputs[..., :10].argmax(-1)
    for place in range(4):
        assert uniform(collections.Counter(tokens[:, place].tolist()), 10)
    assert uniform(collections.Counter(map(tuple, tokens[:, 1:3].tolist())), 100)


@pytest.mark.parametrize("ends", ["wrap", "avoid"])
@pytest.mark.parametrize("length", [4, 5])
def test_places_of_queries_are_uniform(ends, length):
    """With distinct tokens the query determines the place."""
    tokens, task = jnp.asarray([7, 2, 5, 0, 9])[:length], DynamicRecall(ends=ends)
    keys = jax.random.split(jax.random.key(1), 4000)
    queries = briefly(jax.vmap(lambda key: task.problem(key, tokens, length).inputs[-1]))(keys)
    left_out = set() if ends == "wrap" else {int(tokens[0 if length % 2 == 0 else -1])}
    counts = collections.Counter(queries.tolist())
    assert set(counts) == set(tokens.tolist()) - left_out
    assert uniform(counts, len(counts))


@pytest.mark.parametrize(("length", "pairings"), [(4, 3), (5, 15)])
def test_pairings_are_uniform(length, pairings):
    counts = collections.Counter()
    for inputs in many(IDSort(), np.full(4000, length)).inputs:
        ids = inputs[:, 10]
        counts[tuple(map(tuple, ids[:, None] == ids))] += 1
    assert uniform(counts, pairings)


@pytest.mark.parametrize("task", [PanmPrioritySort(), IDSort()], ids=name_of)
def test_features_are_standard_normal(task):
    features = many(task, np.full(4000, 2)).inputs[:, 0, 10:]
    np.testing.assert_allclose(features.mean(0), 0, atol=5 / 4000**0.5)
    np.testing.assert_allclose(np.cov(features.T, ddof=0).reshape(task.channels, -1), np.eye(task.channels), atol=0.12)
    assert abs((features**4).mean() - 3) < 0.6


# --- the ceiling of dynamic recall ------------------------------------------------------------------------------------


@functools.cache
def enumerated(task: DynamicRecall, length: int) -> float:
    """The best accuracy, from all sequences and places: for each input the most common answer is chosen."""
    answers = collections.defaultdict(collections.Counter)
    even = length % 2 == 0
    step = -1 if even == (task.left == "even") else 1
    for tokens in itertools.product(range(task.vocabulary), repeat=length):
        for place in range(length):
            if task.ends == "wrap" or length == 1 or 0 <= place + step < length:
                answers[tokens, tokens[place]][tokens[(place + step) % length]] += 1
    right = sum(max(counts.values()) for counts in answers.values())
    return right / sum(counts.total() for counts in answers.values())


@pytest.mark.parametrize("ends", ["wrap", "avoid"])
@pytest.mark.parametrize(
    ("vocabulary", "length"), [*((2, n) for n in range(1, 11)), *((3, n) for n in (2, 5, 7)), (5, 4)]
)
def test_the_ceiling_by_enumeration(vocabulary, length, ends):
    for left in ("even", "odd"):
        task = DynamicRecall(vocabulary=vocabulary, left=left, ends=ends)
        assert task.ceiling_at(length) == pytest.approx(enumerated(task, length), abs=1e-12)


@pytest.mark.parametrize("ends", ["wrap", "avoid"])
@pytest.mark.parametrize("length", [9, 20])
def test_the_ceiling_is_what_the_best_guess_reaches(length, ends):
    task, samples, hits = DynamicRecall(ends=ends), 2000, 0.0
    for example in map(functools.partial(row, many(task, np.full(samples, length))), range(samples)):
        ((guess, _),) = collections.Counter(answer[0] for answer in recalled(task, read(task, example)[0])).most_common(
            1
        )
        hits += guess == example.targets[0]
    assert hits / samples == pytest.approx(task.ceiling_at(length), abs=5 * (0.25 / samples) ** 0.5)


def test_ceilings_by_length():
    task = DynamicRecall()
    ceilings = [task.ceiling_at(length) for length in task.scored_lengths]
    np.testing.assert_allclose(ceilings, [0.71837, 0.69359, 0.52255, 0.38430, 0.29632], atol=1e-5)
    assert task.spec.ceiling == pytest.approx(np.mean(ceilings))
    # Better than choosing one of the places at random, and otherwise guessing by chance.
    for length, ceiling in zip(task.scored_lengths, ceilings, strict=True):
        single = (1 - 0.9**length) / (0.1 * length)
        assert ceiling > single + 0.1 * (1 - single)
    assert neighbour_ceiling(40, 10, ring=True) == ceilings[3], "cached"
    for other in TASKS:
        if not isinstance(other, DynamicRecall) or other.occurrence != "any" or other.answer == "rest":
            assert other.spec.ceiling is None
            assert other.ceiling_at(9) == 1


def test_the_most_in_a_cell():
    within = most_in_a_cell(6, 3)
    for balls in range(7):
        most = [max(map(cells.count, range(3))) for cells in itertools.product(range(3), repeat=balls)]
        wanted = [np.mean(np.asarray(most) <= m) for m in range(7)]
        np.testing.assert_allclose(within[balls], wanted, atol=1e-12)


@pytest.mark.parametrize("task", [task for task in TASKS if isinstance(task, DynamicRecall)], ids=name_of)
def test_what_is_said_to_be_determined_is(task):
    """Inputs with the right number of slots determine their answer, unless the ceiling is below 1."""
    several = 0
    for i, length in enumerate(LENGTHS):
        example = row(drawn(task), i)
        count = int(example.score_mask.sum())
        answers = {tuple(answer) for answer in recalled(task, read(task, example)[0]) if len(answer) == count}
        assert len(answers) == 1 or task.ceiling_at(int(length)) < 1
        several += len(answers) > 1
    assert (several > 0) == (task.spec.ceiling is not None)


# --- the contract of a task -------------------------------------------------------------------------------------------


@every_variant
def test_shapes_types_and_spec(task):
    spec = task.spec
    assert (spec.vocabulary, spec.output_size, spec.channels, spec.shared_ids) == (10, 10, task.channels, True)
    assert (spec.outputs, spec.alignment, spec.length_rule, spec.end_id) == ("tokens", "free", "given", None)
    assert spec.shapes == task.shapes
    for capacity in (1, 2, 9, 81):
        example = jax.eval_shape(lambda c=capacity: task.sample(jax.random.key(0), c, c))
        inputs, slots = task.shapes(capacity)
        width = (spec.input_width,) if task.channels else ()
        assert example.inputs.shape == (inputs, *width) and example.input_mask.shape == (inputs,)
        assert example.targets.shape == example.target_mask.shape == example.score_mask.shape == (slots,)
        assert example.inputs.dtype == (jnp.float32 if task.channels else jnp.int32)
        assert example.targets.dtype == jnp.int32


@every_variant
def test_more_capacity_is_more_padding(task):
    for narrow, wide in zip(drawn(task), drawn(task, 31), strict=True):
        np.testing.assert_array_equal(wide[:, : narrow.shape[1]], narrow)
        assert not wide[:, narrow.shape[1] :].any()


@every_task
def test_compiled_and_batched_is_plain(task):
    keys = jax.random.split(jax.random.key(0), len(LENGTHS))
    plain = task.sample(keys[150], int(LENGTHS[150]), CAPACITY)
    for mine, other in zip(plain, row(drawn(task), 150), strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-6)  # compiled normal draws are rounded differently


@pytest.mark.parametrize("task", [*DEFAULTS, IDSort(alone="zero")], ids=name_of)
def test_chance_is_the_best_constant_answer(task):
    batch = many(task, np.tile(np.arange(1, task.train_lengths[1] + 1), 600))
    hits = [(batch.targets == answer) & batch.score_mask for answer in range(10)]
    shares = [(right.sum(1) / batch.score_mask.sum(1)).mean() for right in hits]
    assert max(shares) == pytest.approx(task.spec.chance, abs=0.02)


def test_lengths_and_splits():
    task = PanmCopy()
    assert task.per_batch_length and task.train_lengths == (1, 9)
    assert task.splits == {
        "train": (1, 9),
        "validation": (1, 9),
        "test": (9, 80),
        "selection": (10, 10),
        **{f"length_{n}": (n, n) for n in (9, 10, 20, 40, 80)},
    }
    assert task.curve_lengths == (*range(1, 21), *range(25, 51, 5), 60, 70, 80)
    assert {21, 41, 81} <= set(IDSort().curve_lengths)
    assert IDSort().splits["selection"] == PanmPrioritySort().splits["length_11"] == (11, 11)
    assert PanmCopy(train_lengths=(2, 30), scored_lengths=(8,)).curve_lengths[-1] == 30


def test_the_test_takes_its_lengths_in_turn():
    program = briefly(PanmCopy().source("test", 3).batch)
    batches = [program(jax.random.key(0), step) for step in range(7)]
    assert [batch.input_mask.sum(-1).tolist() for batch in batches] == [[n] * 3 for n in (9, 10, 20, 40, 80, 9, 10)]
    assert not np.array_equal(batches[0].inputs, batches[5].inputs)
    assert batches[0].inputs.shape == (3, 80)
    trained = PanmCopy().source("train", 4)
    lengths = np.asarray(
        briefly(jax.vmap(lambda step: trained.batch(jax.random.key(0), step).input_mask.sum(-1)))(jnp.arange(40))
    )
    assert (lengths == lengths[:, :1]).all(), "one length for a batch"
    assert set(lengths[:, 0]) == set(range(1, 10))
    with pytest.raises(ValueError, match="'length_8' is not a split of PanmCopy. Allowed: train, .*length_80"):
        PanmCopy().source("length_8", 3)


@every_variant
def test_tasks_are_plain_data(task):
    assert from_plain(to_plain(task)) == task


@pytest.mark.parametrize("name", ["lstm", "attention", "transformer"])
@pytest.mark.parametrize("task", [PanmCopy(), DynamicRecall(), PanmPrioritySort(), IDSort()], ids=name_of)
def test_models_answer(task, name):
    model = models.make(name, task.spec)
    batch = jax.tree.map(jnp.asarray, drawn(task))

    def answer(key):
        return model.init_with_output(key, batch.inputs, batch.input_mask, batch.target_mask)[0]

    assert jax.eval_shape(answer, jax.random.key(0)).shape == (*batch.target_mask.shape, 10)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PanmCopy(train_lengths=(0, 5)), r"train_lengths is \(0, 5\)"),
        (lambda: PanmCopy(scored_lengths=()), r"scored_lengths are \(\); they must be one or more, ascending"),
        (lambda: PanmCopy(scored_lengths=(9, 9)), r"scored_lengths are \(9, 9\)"),
        (lambda: PanmCopy(scored_lengths=(0, 9)), r"scored_lengths are \(0, 9\)"),
        (lambda: PanmCopy(vocabulary=1), "vocabulary is 1; it must be an integer, at least 2"),
        (lambda: Mix(rule="table"), "rule is 'table'; allowed are formula, example"),
        (lambda: Mix(first_step=2), "first_step is 2; allowed are 1, 0"),
        (lambda: DynamicRecall(left="up"), "left is 'up'; allowed are even, odd"),
        (lambda: DynamicRecall(occurrence="all"), "occurrence is 'all'; allowed are any, first, last"),
        (lambda: DynamicRecall(ends="clip"), "ends is 'clip'; allowed are wrap, avoid"),
        (lambda: DynamicRecall(answer="two"), "answer is 'two'; allowed are one, rest"),
        (lambda: IDSort(id_size=0), "id_size is 0; it must be an integer, at least 1"),
        (lambda: IDSort(alone="none"), "alone is 'none'; allowed are itself, zero"),
    ],
)
def test_wrong_fields_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()
