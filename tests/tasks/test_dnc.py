"""The tasks of the constrained DNC: decoded from their channels and solved in plain Python."""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lenmem import models, papers
from lenmem.serialize import from_plain, to_plain
from lenmem.tasks.base import draw
from lenmem.tasks.dnc import (
    BinaryAdd,
    ChannelTask,
    Differentiation,
    DncTask,
    Logic,
    QuinaryCopy,
    QuinaryShift,
    QuinarySort,
    Search,
    formula_counts,
    growing_lengths,
)
from lenmem.types import Batch
from tests.learning import briefly

CHANNELS: list[ChannelTask] = [
    QuinarySort(),
    QuinarySort(interval=(0.0, 2.0)),
    QuinaryCopy(),
    Differentiation(),
    Differentiation(constant=3),
    QuinaryShift(),
    QuinaryShift(direction="right"),
    BinaryAdd(),
    BinaryAdd(bit_order="low_high"),
    Search(),
    Search(interval=(0.0, 1.0)),
]
FORMULAS = [Logic(), Logic(operators=("equals", "implies", "or"))]
DEFAULTS: list[DncTask] = [task for task in (*CHANNELS, *FORMULAS) if task == type(task)()]
LENGTHS = np.repeat([1, 2, 3, 4, 5, 6, 7, 10, 15, 20], 12)
CAPACITY = 23


def name_of(task: DncTask) -> str:
    changed = [
        f"{field.name}={getattr(task, field.name)}"
        for field in dataclasses.fields(task)
        if getattr(task, field.name) != field.default
    ]
    return "-".join([type(task).__name__, *changed])


every_task = pytest.mark.parametrize("task", DEFAULTS, ids=name_of)
default_channels = pytest.mark.parametrize("task", DEFAULTS[:-1], ids=name_of)
channel_tasks = pytest.mark.parametrize("task", CHANNELS, ids=name_of)
formula_tasks = pytest.mark.parametrize("task", FORMULAS, ids=name_of)


@functools.cache
def drawing(task: DncTask, capacity: int):
    """(key, lengths) -> batch, compiled."""
    return briefly(lambda key, lengths: draw(task, key, lengths, capacity))


@functools.cache
def drawn(task: DncTask, capacity: int = CAPACITY) -> Batch:
    """Examples of `LENGTHS`."""
    return jax.tree.map(np.asarray, drawing(task, capacity)(jax.random.key(0), LENGTHS))


@functools.cache
def trained(task: DncTask) -> list[Batch]:
    """Many examples, with equally many of each training length, in batches as large as that of `drawn`."""
    lengths = np.tile(np.arange(5, 16), 480).reshape(-1, len(LENGTHS))
    return [drawing(task, CAPACITY)(jax.random.key(1 + i), part) for i, part in enumerate(lengths)]


@functools.cache
def judging(task: DncTask):
    """(outputs, batch) -> (loss, metrics, gradient of the loss), compiled."""
    return briefly(lambda *given: (task.loss(*given), task.metrics(*given), jax.grad(task.loss)(*given)))


def row(batch: Batch, i: int) -> Batch:
    return type(batch)(*(leaf[i] for leaf in batch))


def many(rows: list[Any]) -> np.ndarray:
    return np.asarray(rows, np.float32)


# --- against plain Python ---------------------------------------------------------------------------------------------


def numeral(value: float, low: float, high: float, largest: int) -> int:
    """The number that a channel value encodes; it must do so exactly."""
    number = round((float(value) - low) / (high - low) * largest)
    assert float(value) == pytest.approx(low + (high - low) * number / max(largest, 1), abs=1e-6)
    assert 0 <= number <= largest
    return number


def solve(task: ChannelTask, read: list[tuple[int, ...]], query: int | None) -> list[tuple[int, ...]]:
    """The answer, in lists and integers."""
    length, numbers = len(read), [item[0] for item in read]
    if isinstance(task, QuinarySort):
        return [(n,) for n in sorted(numbers)]
    if isinstance(task, QuinaryCopy):
        return read
    if isinstance(task, Differentiation):
        return [(abs(a - b),) for a, b in itertools.pairwise(numbers)] + [(task.constant,)]
    if isinstance(task, QuinaryShift):
        turned = collections.deque(numbers)
        turned.rotate(length // 2 if task.direction == "right" else -(length // 2))
        return [(n,) for n in turned]
    if isinstance(task, BinaryAdd):
        sums = [divmod(a + b, 2) for a, b in read]
        return sums if task.bit_order == "high_low" else [(low, high) for high, low in sums]
    return [(i,) for i, n in enumerate(numbers) if n == query]


@channel_tasks
def test_channels_against_lists(task):
    search = isinstance(task, Search)
    low, high = task.interval
    top, flags = (1 if isinstance(task, BinaryAdd) else 4), (2 if search else 1)
    seen = set()
    for i, length in enumerate(LENGTHS):
        example = row(drawn(task), i)
        inputs = example.inputs[example.input_mask]
        assert inputs[:, -1].tolist() == [0] * length + [1] * flags, "control"
        assert not inputs[length, :-1].any(), "the step of the flag is blank"
        read = [tuple(numeral(x, low, high, top) for x in step[:-1]) for step in inputs[:length]]
        query = numeral(inputs[-1, 0], low, high, 4) if search else None
        wanted = solve(task, read, query)
        largest = length - 1 if search else top
        results = [[low + (high - low) * n / max(largest, 1) for n in numbers] for numbers in wanted]
        ending = [[*numbers, 0] for numbers in results] + [[0] * len(read[0]) + [1]]
        np.testing.assert_allclose(example.targets[example.score_mask], ending, atol=1e-6)
        assert example.target_mask.sum() == length + 1
        assert search or (example.target_mask == example.score_mask).all()
        assert wanted, "something is found"
        seen |= {n for numbers in wanted for n in numbers}
    assert seen == set(range(20 if search else 2 if isinstance(task, BinaryAdd) else 5))


def value_of(text: str) -> bool:
    """The value of a formula, by recursion; all of the text must be used."""

    def formula(at: int) -> tuple[bool, int]:
        if text[at] in "FT":
            return text[at] == "T", at + 1
        if text[at] == "!":
            value, end = formula(at + 1)
            return not value, end
        assert text[at] == "("
        left, at = formula(at + 1)
        operator = text[at]
        right, at = formula(at + 1)
        assert text[at] == ")"
        values = {"&": left and right, "|": left or right, ">": right or not left, "=": left is right}
        return values[operator], at + 1

    value, end = formula(0)
    assert end == len(text)
    return value


def text_of(task: Logic, tokens) -> str:
    return "".join(task.input_names[token] for token in tokens)


@formula_tasks
def test_formulas_against_a_recursive_evaluator(task):
    used: set[str] = set()
    for i, length in enumerate(LENGTHS):
        example = row(drawn(task), i)
        text = text_of(task, example.inputs[example.input_mask])
        assert len(text) == length + 1 and text[-1] == "?"
        assert value_of(text[:-1]) == bool(example.targets[0])
        assert example.targets.shape == (1,) and example.target_mask.all() and example.score_mask.all()
        used |= set(text)
    assert used == set(task.input_names)
    assert (task.spec.output_size, task.answer_names) == (2, ("F", "T"))


@functools.cache
def formulas(length: int, operators: str) -> list[str]:
    """All formulas of that many tokens."""
    if length < 2:
        return ["F", "T"] * length
    found = ["!" + text for text in formulas(length - 1, operators)]
    for left in range(1, length - 3):
        pairs = itertools.product(formulas(left, operators), operators, formulas(length - 3 - left, operators))
        found += [f"({a}{operator}{b})" for a, operator, b in pairs]
    return found


@formula_tasks
def test_formulas_are_counted(task):
    counts, ways = formula_counts(task.operators, 9)
    assert counts.shape == (10, 2) and ways.shape == (10, 2, 1 + 4 * len(task.operators))
    symbols = "".join(task.input_names[6:])
    for length in range(1, 10):
        values = collections.Counter(map(value_of, formulas(length, symbols)))
        assert values[False] and values[True], "every length has formulas of either value"
        np.testing.assert_allclose(np.exp(counts[length]), [values[False], values[True]])
    longer = formula_counts(task.operators, 12)
    np.testing.assert_array_equal(longer[0][:10], counts)
    np.testing.assert_array_equal(longer[1][:10], ways)


@formula_tasks
def test_formulas_are_uniform_given_their_value(task):
    samples = 4000
    program = briefly(lambda key: draw(task, key, jnp.full(samples, 6), 6))
    batch = jax.tree.map(np.asarray, program(jax.random.key(3)))
    drawn_texts = collections.Counter(text_of(task, tokens[:6]) for tokens in batch.inputs)
    possible = formulas(6, "".join(task.input_names[6:]))
    assert set(drawn_texts) == set(possible)
    assert abs(batch.targets.mean() - 0.5) < 5 * 0.5 / samples**0.5
    for value in (False, True):
        those = [text for text in possible if value_of(text) is value]
        share = 0.5 / len(those)
        spread = (share * (1 - share) / samples) ** 0.5
        assert all(abs(drawn_texts[text] / samples - share) < 5 * spread for text in those)


def test_operands_are_as_long_as_in_all_formulas():
    """One of nine tokens has operands of one and five, of which there are the most, or of two, three and four."""
    samples, form = 4000, str.maketrans("FT&|", "vvoo")
    program = briefly(lambda key: draw(Logic(), key, jnp.full(samples, 9), 9))
    batch = jax.tree.map(np.asarray, program(jax.random.key(3)))
    texts = [text_of(Logic(), tokens[:9]).translate(form) for tokens in batch.inputs]
    found = collections.Counter(zip(batch.targets[:, 0].tolist(), texts, strict=True))
    for value in (0, 1):
        those = collections.Counter(text.translate(form) for text in formulas(9, "&|") if value_of(text) == value)
        for text, count in those.items():
            share = 0.5 * count / those.total()
            assert abs(found[value, text] / samples - share) < 5 * (share * (1 - share) / samples) ** 0.5


def test_search_is_uniform_where_there_is_a_hit():
    samples = 6000
    program = briefly(lambda key: draw(Search(interval=(0.0, 4.0)), key, jnp.full(samples, 2), 3))
    batch = jax.tree.map(np.asarray, program(jax.random.key(3)))
    found = collections.Counter((int(a), int(b), int(q)) for (a, b, _, q, _) in batch.inputs[..., 0])
    possible = [(a, b, q) for a, b, q in itertools.product(range(5), repeat=3) if q in (a, b)]
    assert set(found) == set(possible)
    share = 1 / len(possible)
    assert max(abs(found[case] / samples - share) for case in possible) < 5 * (share / samples) ** 0.5
    hits = drawn(Search()).score_mask.sum(-1) - 1
    assert len(set(hits[LENGTHS == 20])) > 3, "the number of hits varies inside a batch"


# --- the contract of a task -------------------------------------------------------------------------------------------


@every_task
def test_shapes_and_types_by_length(task):
    for capacity in (1, 2, 5, 16, 100):
        example = jax.eval_shape(lambda c=capacity: task.sample(jax.random.key(0), c, c))
        inputs, slots = task.shapes(capacity)
        tokens = isinstance(task, Logic)
        width = () if tokens else (task.spec.channels,)
        assert task.spec.shapes == task.shapes
        assert example.inputs.shape == (inputs, *width) and example.targets.shape == (slots, *width)
        assert example.input_mask.shape == (inputs,)
        assert example.target_mask.shape == example.score_mask.shape == (slots,)
        wanted = jnp.int32 if tokens else jnp.float32
        assert example.inputs.dtype == example.targets.dtype == wanted


@every_task
def test_more_capacity_is_more_padding(task):
    tight, wide = drawn(task), drawn(task, 31)
    for mask in (tight.input_mask, tight.target_mask, tight.score_mask):
        assert (np.diff(mask.astype(int), axis=-1) <= 0).all()
    for narrow, leaf in zip(tight, wide, strict=True):
        np.testing.assert_array_equal(leaf[:, : narrow.shape[1]], narrow)
        assert not leaf[:, narrow.shape[1] :].any()
    assert not tight.inputs[~tight.input_mask].any() and not tight.targets[~tight.score_mask].any()


@every_task
def test_compiled_and_batched_is_plain(task):
    keys = jax.random.split(jax.random.key(0), len(LENGTHS))
    for i in (12, 119):
        plain = task.sample(keys[i], int(LENGTHS[i]), CAPACITY)
        for mine, other in zip(plain, row(drawn(task), i), strict=True):
            np.testing.assert_array_equal(mine, other)


@every_task
def test_chance_is_the_best_constant_answer(task):
    if isinstance(task, Logic):
        candidates = np.eye(2, dtype=np.float32)
    else:
        values = np.linspace(-1, 1, 5) if task.width == 1 else np.array([-1.0, 1.0])
        candidates = np.array(list(itertools.product(*[values.tolist()] * task.width, (0.0, 1.0))), np.float32)

    def accuracy(answer):
        shape = (*drawn(task).score_mask.shape, task.spec.output_size)
        measured = [judging(task)(np.broadcast_to(answer, shape), batch)[1] for batch in trained(task)]
        return np.mean([metrics["token_accuracy"] for metrics in measured])

    assert max(map(accuracy, candidates)) == pytest.approx(task.spec.chance, abs=0.012)


@every_task
def test_targets_are_right_answers(task):
    batch = drawn(task)
    tokens = isinstance(task, Logic)
    outputs = np.eye(2, dtype=np.float32)[batch.targets] * 1e3 if tokens else batch.targets
    loss, metrics, _ = judging(task)(outputs, batch)
    assert all((np.asarray(value) == 1).all() and value.shape == LENGTHS.shape for value in metrics.values())
    assert set(metrics) == {"token_accuracy", "exact_match"} | ({"hit_rate"} if isinstance(task, Search) else set())
    assert loss == 0
    loss, metrics, _ = judging(task)(-outputs if tokens else outputs + np.float32(1.2), batch)
    assert all(not np.asarray(value).any() for name, value in metrics.items() if name != "token_accuracy")
    assert loss > 1


@default_channels
def test_loss_is_the_mean_over_rows_of_their_errors(task):
    batch = drawn(task)
    outputs = np.random.default_rng(0).normal(size=batch.targets.shape).astype(np.float32)
    both = dataclasses.replace(task, score_last_result=True)
    losses, complete = [], []
    for i in range(len(LENGTHS)):
        errors = np.square(outputs[i].astype(float) - batch.targets[i])[batch.score_mask[i]]
        complete.append(errors.mean())
        losses.append((errors.sum() - errors[-1, :-1].sum()) / (errors.size - task.width))
    got = briefly(lambda outputs: (task.loss(outputs, batch), both.loss(outputs, batch)))(outputs)
    np.testing.assert_allclose(got, [np.mean(losses), np.mean(complete)], rtol=1e-5)


@default_channels
def test_padding_reaches_neither_loss_nor_metrics(task):
    batch = drawn(task)
    outputs = np.random.default_rng(1).normal(size=batch.targets.shape).astype(np.float32)
    dirty, soiled = outputs.copy(), batch.targets.copy()
    dirty[~batch.score_mask] = soiled[~batch.score_mask] = np.nan
    other = batch._replace(targets=soiled, inputs=np.where(batch.input_mask[..., None], batch.inputs, np.nan))

    clean, got = judging(task)(outputs, batch), judging(task)(dirty, other)
    chex.assert_trees_all_equal(got, clean)
    assert not np.asarray(got[2])[~batch.score_mask].any()


# --- metrics by hand --------------------------------------------------------------------------------------------------


def answered(task: DncTask, length: int, targets: Any, scored: int) -> Batch:
    """One row with a given answer; the metrics do not depend on its inputs."""
    targets = many([targets])
    inputs = np.ones((1, length + getattr(task, "flags", 1)), bool)
    slots = np.ones(targets.shape[:2], bool)
    return Batch(inputs, inputs, targets, slots, np.arange(targets.shape[1])[None] < scored)


def measured(task, batch, outputs) -> dict[str, float]:
    return {name: float(value[0]) for name, value in task.metrics(jnp.asarray(many([outputs])), batch).items()}


def test_numerals_are_rounded_and_the_signal_is_ignored():
    task = QuinaryCopy()
    batch = answered(task, 4, [[-1, 0], [-0.5, 0], [0, 0], [1, 0], [0, 1]], 5)
    outputs = [[-0.76, 9], [-0.74, 9], [0.26, 9], [1.3, 9], [7, 0]]  # 0, 1, 3 instead of 2, and 5 instead of 4
    assert measured(task, batch, outputs) == {"token_accuracy": 0.5, "exact_match": 0}
    clipped = measured(dataclasses.replace(task, clip=True), batch, outputs)
    assert clipped == {"token_accuracy": 0.75, "exact_match": 0}
    outputs[2][0] = 0.24
    assert measured(dataclasses.replace(task, clip=True), batch, outputs)["exact_match"] == 1


def test_bits_count_one_by_one():
    batch = answered(BinaryAdd(), 2, [[1, -1, 0], [-1, 1, 0], [0, 0, 1]], 3)
    outputs = [[0.1, -3, 0], [-0.2, -0.1, 0], [0, 0, 0]]  # -3 stands for -1, which is no bit
    assert measured(BinaryAdd(), batch, outputs) == {"token_accuracy": 0.5, "exact_match": 0}
    assert measured(BinaryAdd(clip=True), batch, outputs) == {"token_accuracy": 0.75, "exact_match": 0}


@pytest.mark.parametrize(
    ("outputs", "accuracy", "exact", "hit_rate"),
    [
        # positions 0, 2 and 3 of five are expected: -1, 0 and 0.5, with half a step of 0.25 to either side
        ([[-1, 0], [0, 0], [0.5, 0], [9, 1], [9, 9], [9, 9]], 1, 1, 1),
        ([[-0.8, 0.4], [0.2, 0.4], [0.7, 0.4], [0, 0.6], [0, 0], [0, 0]], 1, 1, 1),
        ([[-0.7, 0], [0, 0], [0.5, 0], [0, 1], [0, 0], [0, 0]], 3 / 4, 0, 2 / 3),
        ([[-1, 0], [0, 1], [0.5, 0], [0, 1], [0, 0], [0, 0]], 3 / 4, 0, 1 / 3),  # it stops too early
        ([[-1, 0], [0, 0], [0.5, 0], [1, 0], [0, 1], [0, 0]], 3 / 4, 0, 1),  # it stops too late
        ([[-1, 1], [0, 0], [0.5, 0], [1, 1], [0, 1], [0, 0]], 3 / 4, 0, 0),
    ],
)
def test_search_stops_at_the_first_signal(outputs, accuracy, exact, hit_rate):
    batch = answered(Search(), 5, [[-1, 0], [0, 0], [0.5, 0], [0, 1], [0, 0], [0, 0]], 4)
    got = measured(Search(), batch, outputs)
    assert got == pytest.approx({"token_accuracy": accuracy, "exact_match": exact, "hit_rate": hit_rate})


def test_the_threshold_of_the_signal():
    batch = answered(Search(), 5, [[-1, 0], [0, 1]], 2)
    assert measured(Search(), batch, [[-1, 0.6], [0, 0.9]])["hit_rate"] == 0
    assert measured(Search(threshold=0.7), batch, [[-1, 0.6], [0, 0.9]])["exact_match"] == 1


# --- the rest of lenmem -----------------------------------------------------------------------------------------------


@every_task
def test_every_model_takes_every_task_but_those_that_need_other_ones(task):
    refusals = {name: models.supports(models.make(name), task.spec) for name in models.names()}
    need_tokens = set() if isinstance(task, Logic) else {"pointer_network", "nram"}
    need_columns = {"bert_span", "bert_span_panm"}
    need_an_answer_at_each_input = {"answer_automaton"}
    others = need_columns | need_an_answer_at_each_input
    assert {name for name, reason in refusals.items() if reason} == need_tokens | others


@pytest.mark.parametrize("name", ["lstm", "transformer", "attention"])
@pytest.mark.parametrize("task", [Search(), BinaryAdd(), Logic()], ids=name_of)
def test_models_answer(name, task):
    model = models.make(name, task.spec)
    batch = jax.tree.map(jnp.asarray, drawn(task))

    def answer(key):
        return model.init_with_output(key, batch.inputs, batch.input_mask, batch.target_mask)[0]

    outputs = jax.eval_shape(answer, jax.random.key(0))
    assert outputs.shape == (*batch.target_mask.shape, task.spec.output_size)


def test_a_recurrent_reading_has_the_papers_layout():
    from lenmem.nn.interfaces import pack

    task, length = QuinaryCopy(), 7
    spec = task.spec
    assert spec.delimited and spec.channels == 2 and spec.vocabulary == 0 and spec.length_rule == "given"
    batch = jax.tree.map(lambda x: x[LENGTHS == length], drawn(task))
    packed = pack(
        batch.inputs,
        batch.input_mask.sum(-1),
        batch.target_mask.sum(-1),
        answers=batch.target_mask.shape[1],
        spec=spec,
        begin=False,
        delay=1,
        own_blank=True,
    )
    symbols, valid, decoding = (np.asarray(x[0]) for x in (packed.symbols, packed.valid, packed.decoding))
    assert valid.sum() == 2 * length + 2
    assert np.flatnonzero(symbols[:, 1]).tolist() == [length], "the flag, at step L + 1"
    assert np.flatnonzero(decoding & valid)[0] == length + 1, "step L + 2"
    assert not symbols[length + 1 :, :2].any(), "both channels are silent while answering"


def test_lengths():
    task = QuinarySort()
    assert task.splits == {"train": (5, 15), "validation": (5, 15), "test": (2, 100), "selection": (30, 30)}
    assert task.per_batch_length
    assert task.source("selection", 4).batch(jax.random.key(0), 0).inputs.shape == (4, 31, 2)
    assert task.curve_lengths == (*range(2, 21), *range(25, 51, 5), *range(60, 101, 10))
    assert QuinarySort(train_lengths=(1, 7), test_lengths=(5, 33)).curve_lengths == (*range(1, 21), 25, 30, 33)
    extended = {row["max_length"] for row in papers.tables("dnc")["table_5"]["rows"]} - {0}
    assert extended <= set(growing_lengths(2, 1000))
    assert growing_lengths(2, 1000)[-13:] == (100, 150, 200, 250, 300, 350, 400, 450, 500, 600, 700, 800, 900, 1000)[1:]


@pytest.mark.parametrize("task", [*CHANNELS, *FORMULAS], ids=name_of)
def test_tasks_are_plain_data(task):
    assert from_plain(to_plain(task)) == task


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: QuinarySort(train_lengths=(0, 5)), r"train_lengths is \(0, 5\)"),
        (lambda: QuinarySort(selection_length=0), r"selection_length is 0"),
        (lambda: QuinarySort(interval=(1.0, 1.0)), r"interval is \(1.0, 1.0\); its ends must differ"),
        (lambda: Differentiation(constant=5), "constant is 5; it must be an integer, from 0 to 4"),
        (lambda: QuinaryShift(direction="up"), "direction is 'up'; allowed are left, right"),
        (lambda: BinaryAdd(bit_order="high"), "bit_order is 'high'; allowed are high_low, low_high"),
        (lambda: Logic(operators=()), r"operators are \(\); they must be one or more"),
        (lambda: Logic(operators=("and", "xor")), "one of and, or, implies, equals"),
    ],
)
def test_wrong_fields_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()
