"""The tasks of the Chomsky hierarchy against solvers in plain Python, and what is particular to them."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lenmem import tasks
from lenmem.configs import load_config
from lenmem.evaluation.lengths import Evaluation
from lenmem.tasks.base import draw
from lenmem.tasks.chomsky import ChomskyTask
from lenmem.types import Batch

NAMES = (
    *("even_pairs", "parity_check", "cycle_navigation", "modular_arithmetic", "modular_arithmetic_brackets"),
    *("solve_equation", "reverse_string", "stack_manipulation", "duplicate_string", "missing_duplicate", "odds_first"),
    *("bucket_sort", "binary_addition", "binary_multiplication", "compute_sqrt", "compare_occurrence"),
    *("interlocked_pairing", "equal_repeats", "missing_palindrome", "divide_by_two"),
    "nondeterministic_stack_manipulation",
)
LENGTHS = (1, 2, 3, 4, 5, 6, 7, 12, 19)
CAPACITY, ROWS = 24, 12


def make(name, **fields) -> ChomskyTask:
    task = tasks.make(name, **fields)
    assert isinstance(task, ChomskyTask)
    return task


@functools.cache
def rows(name, capacity=CAPACITY):
    """(length, input, answer, scored) of some examples of each length, without padding; all have been checked."""
    task = make(name)
    lengths = np.repeat(LENGTHS, ROWS)
    batch = jax.jit(lambda key: draw(task, key, jnp.asarray(lengths), capacity))(jax.random.key(0))
    batch = jax.tree.map(np.asarray, batch)
    found = []
    for i, length in enumerate(lengths.tolist()):
        inputs, answer, scored = (
            values[i][mask[i]].tolist()
            for values, mask in (
                (batch.inputs, batch.input_mask),
                (batch.targets, batch.target_mask),
                (batch.score_mask, batch.target_mask),
            )
        )
        assert not batch.inputs[i][~batch.input_mask[i]].any() and not batch.targets[i][~batch.target_mask[i]].any()
        assert len(answer) == task.answer_slots(length) and len(inputs) == task.input_size(length)
        found.append((length, inputs, answer, scored))
    return found


def number(bits):
    """The number of these bits, lowest first."""
    return sum(bit << place for place, bit in enumerate(bits))


def lowest_first(value):
    """Its bits without leading zeros; 0 is one bit."""
    return [int(bit) for bit in reversed(f"{value:b}")]


def ended(answer, slots, end):
    """Followed by the end symbol, then zeros."""
    return answer + [end] + [0] * (slots - len(answer) - 1)


def solve(name, length, inputs, answer):
    """The answer by other means; also checks that the input is well formed. `answer` is taken if any is right."""
    slots = len(answer)
    task = make(name)
    text = [task.input_names[token] for token in inputs]
    match name:
        case "even_pairs":
            return [sum(a != b for a, b in itertools.pairwise(inputs)) % 2]
        case "parity_check":
            return [inputs.count(1) % 2]
        case "cycle_navigation":
            return [sum(map(int, text)) % 5]
        case "modular_arithmetic":
            assert len(text) % 2 and all(sign in "+-*" for sign in text[1::2])
            return [eval("".join(text)) % 5]
        case "modular_arithmetic_brackets":
            assert len(text) == length
            return [eval("".join(text)) % 5]
        case "solve_equation":
            if length < 3:
                assert not any(inputs)
                return [0]
            left, right = "".join(text).split("=")
            assert left.count("x") == 1 and len(text) == length
            (root,) = (x for x in range(5) if eval(left.replace("x", str(x))) % 5 == int(right))
            return [root]
        case "reverse_string":
            return inputs[::-1]
        case "stack_manipulation":
            filled = next((i for i, token in enumerate(inputs) if token > 1), length)
            assert filled > 0 and all(token > 1 for token in inputs[filled:])
            stack = inputs[:filled]
            for command in text[filled:]:
                stack = stack[:-1] if command == "pop" else [*stack, int(command[-1])]
            return ended(stack[::-1], slots, 2)
        case "nondeterministic_stack_manipulation":
            if length > 3:
                *before, bar, told = text
                assert bar == "|" and before.count("?") == 1 and told in ("pop", "push")
                text = [told if symbol == "?" else symbol for symbol in before]
            filled = next((i for i, symbol in enumerate(text) if symbol not in "01"), length)
            assert filled > 0 and set(text[filled:]) <= {"pop", "push"} and (length < 2 or filled < len(text))
            stack = [int(symbol) for symbol in text[:filled]]
            for command in text[filled:]:
                stack = stack[:-1] if command == "pop" else [*stack, 1]
            return ended(stack[::-1], slots, 2)
        case "compare_occurrence":
            return [int(inputs.count(1) >= inputs.count(0))]
        case "interlocked_pairing":
            a, count = inputs[0], inputs.count(inputs[0])
            other = length - count
            assert inputs == [a] * count + [1 - a] * other and (other or length == 1)
            return [a] * count + [1 - a] * (other + count) + [a] * other
        case "equal_repeats":
            ones = inputs.count(1)
            before = inputs.index(1) if ones else length // 2
            after = length - before - ones
            assert inputs == [0] * before + [1] * ones + [0] * after
            pairs = [before == ones, ones == after, before == after]
            assert any(pairs) or length == 1
            return [0 if length == 1 or pairs[0] else pairs.index(True)]
        case "missing_palindrome":
            place = inputs.index(2)
            if 2 * place == length - 1:
                assert inputs == inputs[::-1]
                return answer  # any
            words = {bit: [*inputs[:place], bit, *inputs[place + 1 :]] for bit in (0, 1)}
            fits = [bit for bit, word in words.items() if word == word[::-1]]
            assert len(fits) == 1 and inputs.count(2) == 1
            return fits
        case "divide_by_two":
            assert inputs.count(1) == 1
            at = math.ceil(inputs.index(1) / 2)
            return [int(slot == at) for slot in range(length)]
        case "duplicate_string":
            return inputs * 2
        case "missing_duplicate":
            if length == 1:
                assert inputs == [1]
                return [1]
            half = length // 2
            first, second = inputs[:half], inputs[half : 2 * half]
            assert inputs.count(2) == 1 and inputs[2 * half :] == [3] * (length % 2)
            (answer,) = (b if a == 2 else a for a, b in zip(first, second, strict=True) if a != b)
            return [answer]
        case "odds_first":
            return inputs[0::2] + inputs[1::2]
        case "bucket_sort":
            return sorted(inputs)
        case "binary_addition" | "binary_multiplication":
            if length < 3:
                assert not any(inputs)
                return ended([0], max(slots, 2), 2)[:slots] if slots > 1 else [2]
            cut = inputs.index(2)
            one, other = number(inputs[:cut]), number(inputs[cut + 1 :])
            assert one and other and inputs.count(2) == 1 and 0 < cut < length - 1
            return ended(lowest_first(one + other if name == "binary_addition" else one * other), slots, 2)
        case "compute_sqrt":
            value = number(inputs[::-1])
            assert value > 0
            root = lowest_first(math.isqrt(value))
            return (root + [0] * (slots - len(root)))[::-1]
        case other:
            raise AssertionError(f"no solver for {other}")


@pytest.mark.parametrize("name", NAMES)
def test_answers_are_those_of_an_independent_solver(name):
    answers = set()
    for length, inputs, answer, scored in rows(name):
        assert answer == solve(name, length, inputs, answer), (length, inputs)
        if name == "divide_by_two":
            one = answer.index(1)
            assert scored == [slot in (one - 1, one) for slot in range(length)]
        else:
            end = answer.index(2) + 1 if make(name).ends else len(answer)
            assert scored == [True] * end + [False] * (len(answer) - end)
        answers.add(tuple(answer))
    assert len(answers) > 1


@pytest.mark.parametrize("name", NAMES)
def test_more_capacity_changes_only_the_padding(name):
    assert rows(name, 31) == rows(name)


@pytest.mark.parametrize("name", NAMES)
def test_tokens_are_integers(name):
    """As losses ask; what a task computes in floats is converted back."""
    task = make(name)
    drawn = jax.eval_shape(lambda key: task.sample(key, 8, 9), jax.random.key(0))
    assert drawn.inputs.dtype == drawn.targets.dtype == jnp.int32


def test_long_numbers():
    """Sums, products and roots of hundreds of bits are exact."""
    for name in ("binary_addition", "binary_multiplication", "compute_sqrt", "modular_arithmetic_brackets"):
        task = make(name)
        batch = jax.jit(lambda key, task=task: draw(task, key, jnp.asarray([499, 500]), 500))(jax.random.key(1))
        for i, length in enumerate((499, 500)):
            inputs = np.asarray(batch.inputs[i])[:length].tolist()
            answer = np.asarray(batch.targets[i])[: task.answer_slots(length)].tolist()
            assert answer == solve(name, length, inputs, answer)


def test_expressions_have_brackets_and_signs():
    """Every form of the grammar is drawn: unary minus, products, and brackets within brackets."""
    task = make("modular_arithmetic_brackets")
    texts = {"".join(task.input_names[t] for t in inputs) for n, inputs, *_ in rows("modular_arithmetic_brackets")}
    assert any("--" in text for text in texts) and any("*-" in text for text in texts)
    assert any("((" in text for text in texts) and any(text.count("*") > 1 for text in texts)


@functools.cache
def texts(name, length):
    """Many inputs, as their symbols."""
    task = make(name)
    batch = jax.jit(lambda key: draw(task, key, jnp.full(1000, length), length))(jax.random.key(0))
    return [[task.input_names[token] for token in tokens] for tokens in np.asarray(batch.inputs).tolist()]


def test_anything_may_be_hidden():
    """Any symbol of a word, any number, and any command after a stack of any size."""
    for name, places in (("missing_duplicate", 6), ("missing_palindrome", 7)):
        assert {text.index("?") for text in texts(name, 7)} == set(range(places))
    before = [sum(symbol.isdigit() for symbol in text[: text.index("x")]) for text in texts("solve_equation", 9)]
    assert set(before) == {0, 1}
    found = {
        (next(place for place, symbol in enumerate(text) if symbol not in "01"), text.index("?"))
        for text in texts("nondeterministic_stack_manipulation", 7)
    }
    assert found == {(size, place) for size in range(1, 5) for place in range(size, 5)}


def test_every_symbol_occurs_where_it_may():
    for name in NAMES:
        assert set(itertools.chain(*texts(name, 7))) == set(make(name).input_names), name
    assert {(text[0], text.count("0")) for text in texts("interlocked_pairing", 4)} == {
        (first, count) for first in "01" for count in range(1, 4)
    }
    assert {text.count("1") for text in texts("equal_repeats", 7)} == {1, 2, 3, 5}
    assert all(text[-1] not in "01" for text in texts("stack_manipulation", 7)), "at least one command"


def test_left_operands_are_of_any_length():
    def left(text):
        """Symbols of the left operand of (left op right)."""
        if text[1] != "(":
            return 1 + (text[1] == "-")
        return 1 + np.argmax(np.cumsum([(symbol == "(") - (symbol == ")") for symbol in text[1:]]) == 0)

    found = np.bincount([left(text) for text in texts("modular_arithmetic_brackets", 9)])
    assert found[0] == 0 and len(found) == 6 and np.all(np.abs(found[1:] - 200) < 5 * 200**0.5)


def test_numbers_are_uniform():
    """Of the numbers of a short sum: none is 0, none is rarer than another."""
    task = make("binary_addition")
    batch = jax.jit(lambda key: draw(task, key, jnp.full(4000, 5), 5))(jax.random.key(0))
    inputs = np.asarray(batch.inputs)
    middle = inputs[inputs[:, 2] == 2][:, :2] @ [1, 2]
    assert 0.28 < (inputs[:, 2] == 2).mean() < 0.39
    assert set(middle) == {1, 2, 3} and min(np.mean(middle == value) for value in (1, 2, 3)) > 0.28


def test_the_three_kinds_of_repeats_are_equally_frequent():
    task = make("equal_repeats")
    batch = jax.jit(lambda key: draw(task, key, jnp.full(3000, 11), 11))(jax.random.key(0))
    shares = np.bincount(np.asarray(batch.targets[:, 0]), minlength=3) / 3000
    np.testing.assert_allclose(shares, 1 / 3, atol=0.04)


def test_a_constant_answer_does_not_halve_a_distance():
    """All zeros: at most one of the two scored slots is right."""
    task = make("divide_by_two")
    batch = draw(task, jax.random.key(0), jnp.full(200, 12), 12)
    scores = task.metrics(jnp.zeros((200, 12, 2)).at[..., 0].set(1.0), batch)
    assert scores["token_accuracy"].max() == 0.5 and scores["exact_match"].sum() == 0


def test_what_is_hidden_in_the_middle_is_a_guess():
    """The ceiling of an odd length is that of a solver that knows all but the middle, which it takes for 0."""
    task = make("missing_palindrome")
    batch = jax.jit(lambda key: draw(task, key, jnp.full(4000, 5), 5))(jax.random.key(3))
    hidden = np.argmax(np.asarray(batch.inputs) == 2, axis=1)
    mirrored = np.take_along_axis(np.asarray(batch.inputs), 4 - hidden[:, None], axis=1)[:, 0]
    right = np.where(hidden == 2, 0, mirrored) == np.asarray(batch.targets[:, 0])
    assert abs(right.mean() - task.ceiling_at(5)) < 0.02
    assert (task.ceiling_at(1), task.ceiling_at(4)) == (0.5, 1)
    assert dataclasses.replace(task, test_lengths=(4, 5)).spec.ceiling == pytest.approx((1 + task.ceiling_at(5)) / 2)


def test_the_largest_modulus_does_not_overflow():
    task = make("modular_arithmetic", modulus=46_341)
    batch = draw(task, jax.random.key(0), jnp.full(64, 9), 9)
    names = task.input_names
    for tokens, answer in zip(np.asarray(batch.inputs), np.asarray(batch.targets)[:, 0], strict=True):
        written = " ".join(names[token] for token in tokens)
        assert eval(written) % 46_341 == answer
    with pytest.raises(ValueError, match="modulus is 46342; it must be an integer, from 2 to 46341"):
        make("modular_arithmetic", modulus=46_342)


def test_padding_after_the_end_is_trained_and_not_scored():
    """The loss sees it, the metrics do not."""
    task = make("stack_manipulation")
    mask = jnp.ones((1, 4), bool)
    batch = Batch(jnp.zeros((1, 3), jnp.int32), mask[:, :3], jnp.array([[1, 2, 0, 0]]), mask, mask.at[0, 2:].set(False))
    wrong = 9 * jax.nn.one_hot(jnp.array([[1, 2, 1, 1]]), 3)
    right = 9 * jax.nn.one_hot(jnp.array([[1, 2, 0, 0]]), 3)
    assert task.loss(wrong, batch) > 4 > 0.01 > task.loss(right, batch)
    assert task.metrics(wrong, batch)["exact_match"] == 1


def test_the_spec():
    """Chance, classes and lengths of the paper; the lengths of a curve are few and reach both ends."""
    for name in NAMES:
        task = make(name)
        spec = task.spec
        assert (task.train_lengths, task.test_lengths) == ((1, 40), (41, 500))
        assert spec.chance == (1 / 3 if name == "equal_repeats" else 0.2 if spec.output_size == 5 else 0.5)
        assert len(task.input_names) == spec.vocabulary and len(task.answer_names) == spec.output_size
        lengths = task.curve_lengths
        assert list(lengths) == sorted(set(lengths)) and {1, 40, 41, 500} <= set(lengths) and len(lengths) == 32
    assert make("parity_check", train_lengths=(3, 5), test_lengths=(6, 7)).curve_lengths == (3, 4, 5, 6, 7)


@pytest.mark.parametrize(("name", "field"), [("bucket_sort", "vocabulary"), ("cycle_navigation", "positions")])
def test_bad_fields(name, field):
    with pytest.raises(ValueError, match=rf"{field} is 1; it must be an integer, at least 2"):
        tasks.make(name, **{field: 1})


def test_expressions_without_brackets_have_odd_lengths():
    """The published code draws even lengths, too; such an expression is one symbol shorter."""
    task = tasks.make("modular_arithmetic")
    with pytest.raises(ValueError, match="has an odd number of symbols, got the length 40"):
        Evaluation(lengths=(39, 40)).lengths_for(task)
    assert all(length % 2 for length in Evaluation().lengths_for(task))
    experiment = load_config("chomsky/modular_arithmetic_simple")
    assert experiment.evaluation.lengths_for(task)[:6] == (1, 9, 19, 29, 39, 41)
    rows = draw(task, jax.random.key(0), jnp.asarray([5, 6]), 6)
    assert np.sum(rows.input_mask, axis=1).tolist() == [5, 5]
