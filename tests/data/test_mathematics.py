"""Questions of the Mathematics Dataset against Python's own arithmetic."""

from __future__ import annotations

import random
import re
from collections import Counter
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lenmem.data import mathematics
from lenmem.data.mathematics import MODULES, decimal, generated, integer, number, read_release, thirds

NUMBER = r"(-?\d+(?:\.\d+)?)"


def solved(question):
    """The answer, by reading the words."""
    first, second = map(Decimal, re.findall(rf"(?<![\d.]){NUMBER}", question.replace(" - ", " minus ")))
    if " between " in question:
        return abs(first - second)
    if "Subtract" in question or " less than " in question:
        return second - first
    if " minus " in question.replace(" - ", " minus ") or " take away " in question:
        return first - second
    return first + second


@pytest.mark.parametrize("entropy", [4.0, 11.3, 20.0])
def test_sums_and_differences_are_right(entropy):
    rng = random.Random(0)
    for _ in range(600):
        question, answer = mathematics.add_or_sub(rng, entropy)
        assert Decimal(answer) == solved(question), question
        assert re.fullmatch(NUMBER, answer), answer
        assert not re.search(r"\.\d*0$", answer), "a trailing zero"
        assert answer != "-0"


def test_every_phrase_occurs_as_often_as_it_should():
    rng, counts = random.Random(1), Counter()
    draws = 24_000
    for _ in range(draws):
        counts[re.sub(NUMBER, "#", mathematics.add_or_sub(rng, 8.0)[0].replace(" - ", " minus "))] += 1
    for phrase in ("# + #", "#+#", "Sum # and #.", "What is # plus #?"):
        assert abs(counts[phrase] - draws / 2 / 11) < 5 * (draws / 22) ** 0.5
    # Half of the differences of numbers in any order are at least 0; these have twelve phrases, the others eight.
    expected = draws / 2 * (1 / 12 + 1 / 8) / 2
    assert abs(counts["Subtract # from #."] - expected) < 5 * expected**0.5
    expected = draws / 2 / 2 / 12 * 2
    assert abs(counts["What is the distance between # and #?"] - expected) < 5 * expected**0.5
    # The two phrases for pairs of differences look alike here, and so do `-` and `minus`.
    assert len(counts) == 11 + (8 - 1) + 2


def test_place_values_are_right():
    rng, worth = random.Random(2), {"units": 0, "tens": 1, "hundreds": 2, "thousands": 3, "ten thousands": 4}
    worth |= {"hundred thousands": 5, "millions": 6, "ten millions": 7, "hundred millions": 8, "billions": 9}
    worth |= {"ten billions": 10, "hundred billions": 11, "trillions": 12}
    seen = Counter()
    for _ in range(4000):
        question, answer = mathematics.place_value(rng, rng.uniform(3, 12))
        place, digits = re.fullmatch(r"What is the ([a-z ]+) digit of (\d+)\?", question).groups()  # type: ignore
        assert int(answer) == int(digits) // 10 ** worth[place] % 10
        assert worth[place] < len(digits)
        seen[worth[place] / len(digits) < 0.5] += 1
    assert 0.4 < seen[True] / 4000 < 0.65


def test_numbers_have_the_published_range():
    rng = random.Random(3)
    signed = [integer(rng, 2.0, signed=True) for _ in range(5000)]
    assert (min(signed), max(signed)) == (-50, 50)
    positive = [integer(rng, 1.0, signed=False) for _ in range(2000)]
    assert (min(positive), max(positive)) == (1, 11)
    drawn = [number(rng, 3.0) for _ in range(5000)]
    whole = sum(value.denominator == 1 for value in drawn)
    assert abs(whole - 2500) < 5 * 36
    assert all(abs(value) <= 500 for value in drawn)
    assert max(len(decimal(value).partition(".")[2]) for value in drawn) == 3


@given(st.integers(-(10**15), 10**15), st.integers(0, 12))
def test_decimals_are_exact_and_short(numerator, places):
    written = decimal(Fraction(numerator, 10**places))
    assert Fraction(written) == Fraction(numerator, 10**places)
    assert written == "0" if not numerator else not re.match(r"-?0\d", written)
    assert "." not in written or written[-1] != "0"


def test_a_third_is_no_decimal():
    with pytest.raises(ValueError, match="1/3 is not a terminating decimal"):
        decimal(Fraction(1, 3))


def test_sets_have_no_question_twice_and_their_own_sizes_of_numbers():
    sets = generated(MODULES["place_value"], 200, 50, seed=0)
    assert {name: len(pairs) for name, pairs in sets.items()} == {
        **dict.fromkeys(("easy", "medium", "hard"), 250),
        "interpolate": 50,
        "extrapolate": 50,
    }
    questions = [question for pairs in sets.values() for question, _ in pairs]
    assert len(set(questions)) == len(questions)
    longest = {name: max(len(re.sub(r"\D", "", q)) for q, _ in pairs) for name, pairs in sets.items()}
    assert longest["easy"] <= 6 < longest["hard"] <= 11
    assert longest["extrapolate"] >= 12
    assert generated(MODULES["place_value"], 200, 50, seed=0) == sets
    assert generated(MODULES["place_value"], 200, 50, seed=1) != sets
    assert thirds(MODULES["add_or_sub"]) == {"easy": (4, 8), "medium": (8, 12), "hard": (12, 16)}


def test_too_many_questions_are_refused(monkeypatch):
    few = MODULES["place_value"]._replace(train=(0.1, 0.2))
    with pytest.raises(ValueError, match="not 520 different questions in the set 'easy'"):
        generated(few, 500, 20, seed=0)


def release(folder, lines):
    for name in ("train-easy", "train-medium", "train-hard", "interpolate", "extrapolate"):
        (folder / name).mkdir()
        big = "_big" if name == "extrapolate" else ""
        (folder / name / f"numbers__place_value{big}.txt").write_text(lines.replace("7", str(len(name) + 70)))


def test_the_release_is_read(tmp_path):
    release(tmp_path, "What is the tens digit of 7?\n7\nWhat is the units digit of 1?\n1\n")
    sets = read_release(MODULES["place_value"], str(tmp_path))
    assert list(sets) == ["easy", "medium", "hard", "interpolate", "extrapolate"]
    assert sets["extrapolate"] == [("What is the tens digit of 81?", "81"), ("What is the units digit of 1?", "1")]


def test_files_with_faults_are_refused_with_the_line(tmp_path):
    with pytest.raises(ValueError, match=r"train-easy/numbers__place_value.txt cannot be read"):
        read_release(MODULES["place_value"], str(tmp_path))
    release(tmp_path, "What is it?\n1\nAnd this?\n")
    with pytest.raises(ValueError, match=r"line 3: the question 'And this\?' has no answer"):
        read_release(MODULES["place_value"], str(tmp_path))
    (tmp_path / "train-easy/numbers__place_value.txt").write_text("What?\n\n")
    with pytest.raises(ValueError, match="line 2: it is empty"):
        read_release(MODULES["place_value"], str(tmp_path))


def test_tfds_lines_are_read_in_both_forms(monkeypatch):
    lines = {"train": [(b"Sum 1 and 2.\n", b"3\n")], "test": [("b'1 + 1\\n'", "b'2\\n'")]}
    monkeypatch.setattr(mathematics, "examples", lambda name, split, features: lines[split])
    assert mathematics.read_tfds(MODULES["add_or_sub"]) == {
        "train": [("Sum 1 and 2.", "3")],
        "interpolate": [("1 + 1", "2")],
    }
