"""Files that a user brings: what is read, how it is split, and what is said of faults."""

from __future__ import annotations

import json

import jax
import numpy as np
import pytest

from lenmem.data.pairs import EXAMPLE, read_pairs, tokenised
from lenmem.tasks.pairs import Pairs


def table(path, rows):
    path.write_text("".join(f"{a}\t{b}\n" for a, b in rows))
    return str(path)


def words(task, example, row=None):
    """Input and answer as texts."""
    inputs, mask, targets, _, score_mask = (np.asarray(x) if row is None else np.asarray(x)[row] for x in example)
    answer = targets[score_mask]
    assert answer[-1] == task.spec.end_id
    return " ".join(task.input_names[i] for i in inputs[mask]), " ".join(task.answer_names[i] for i in answer[:-1])


ROWS = [(" ".join(f"w{j}" for j in range(i, i + i % 10 + 1)), f"n{i % 10} n{i}") for i in range(100)]


@pytest.mark.parametrize("share", [0.8, 0.5])
def test_the_longer_inputs_are_the_test(tmp_path, share):
    task = Pairs(path=table(tmp_path / "pairs.tsv", ROWS), train_share=share, validation_share=0.2)
    tables = task.tables()
    count = int(100 * share)
    assert len(tables["test"]) == 100 - count
    held = int(count * (1 - 0.8))  # A share is rounded down, and 1 - 0.8 is a little less than 0.2.
    assert (len(tables["train"]), len(tables["validation"])) == (count - held, held)
    assert task.train_lengths == (1, count // 10)
    assert task.test_lengths == (count // 10 + 1, 10)
    seen = set()
    for split in task.splits:
        batch = task.source(split, len(tables[split]), 0).batch(0)
        got = {words(task, batch, row) for row in range(len(tables[split]))}
        assert len(got) == len(tables[split])
        assert not got & seen
        seen |= got
        assert all(task.lengths_of(split)[0] <= len(text.split()) <= task.lengths_of(split)[1] for text, _ in got)
    assert seen == set(ROWS)


def test_more_than_256_tokens_have_ids_of_their_own(tmp_path):
    rows = [(f"a{i} b{i}", f"c{i}") for i in range(300)]
    task = Pairs(path=table(tmp_path / "pairs.tsv", rows))
    assert task.spec.vocabulary == 600
    assert task.spec.output_size == 301
    batch = task.source("test", 60, 0).batch(0)
    assert {words(task, batch, row) for row in range(60)} <= set(rows)


@pytest.mark.parametrize(("tokens", "wanted"), [("character", "h é _ y"), ("byte", "68 c3 a9 20 79")])
def test_characters_and_bytes(tmp_path, tokens, wanted):
    task = Pairs(path=table(tmp_path / "pairs.tsv", [("hé y", "x")] * 10), tokens=tokens)
    assert words(task, task.source("test", 2, 0).batch(0), 0)[0] == wanted
    assert task.train_lengths == (len(wanted.split()),) * 2


def test_objects_in_lines(tmp_path):
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps({"source": a, "target": b, "id": 3}) + "\n" for a, b in ROWS))
    task = Pairs(path=str(path), columns=("source", "target"))
    got = task.source("test", 20, 0).batch(0)
    assert {words(task, got, row) for row in range(20)} <= set(ROWS)


def test_the_example_is_reversed():
    task = Pairs()
    assert len(list(read_pairs(EXAMPLE))) == 400
    for length in (1, 9, 10):
        question, answer = words(task, jax.jit(task.sample, static_argnums=2)(jax.random.key(0), length, 10))
        assert question.split() == answer.split()[::-1]
    small, large = (task.sample(jax.random.key(1), 3, capacity) for capacity in (3, 10))
    assert words(task, small) == words(task, large)
    assert task.spec.chance == pytest.approx(0.22, abs=0.03)


def test_a_changed_file_is_read_again(tmp_path):
    task = Pairs(path=table(tmp_path / "pairs.tsv", [("a", "b")] * 10))
    assert task.spec.vocabulary == 1
    table(tmp_path / "pairs.tsv", [("a c", "b")] * 10)
    assert task.spec.vocabulary == 2


@pytest.mark.parametrize(
    ("name", "text", "columns", "message"),
    [
        ("a.tsv", "x y\tz\nno tab\n", ("0", "1"), r"a.tsv, line 2: columns 0 and 1 are wanted; it has 1"),
        ("a.tsv", "x\ty\n", ("0", "2"), r"line 1: columns 0 and 2 are wanted; it has 2"),
        ("a.tsv", "x\ty\n", ("a", "b"), r"line 1: columns of a table are numbers"),
        ("a.tsv", "x\ty\n\ty\n", ("0", "1"), r"line 2: the input '' has no word"),
        ("a.tsv", "", ("0", "1"), r"a.tsv is empty"),
        ("a.tsv", "x\ty\n", ("0", "1"), r"has 1 pairs, too few for a train_share of 0.8"),
        ("a.jsonl", '{"a": "x", "b": "y"}\n{"a": "x"}\n', ("a", "b"), r"line 2: there is no key 'b'; there are a"),
        ("a.jsonl", '{"a": "x", "b": 3}\n', ("a", "b"), r"line 1: 'b' is 3; wanted is a text"),
        ("a.jsonl", '["x"]\n', ("a", "b"), r"line 1: it holds list"),
        ("a.jsonl", '{"a": "x"\n', ("a", "b"), r"line 1: it is no JSON"),
    ],
)
def test_faults_are_named_with_their_line(tmp_path, name, text, columns, message):
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        Pairs(path=str(path), columns=columns).tables()


def test_other_faults(tmp_path):
    with pytest.raises(ValueError, match=r"nowhere.tsv cannot be read \(No such file"):
        _ = Pairs(path=str(tmp_path / "nowhere.tsv")).spec
    (tmp_path / "latin.tsv").write_bytes("a\tb\né\tb\n".encode("latin-1"))
    with pytest.raises(ValueError, match=r"line 2: it is not UTF-8, from byte 0 on"):
        list(read_pairs(tmp_path / "latin.tsv"))
    for fields, message in [
        ({"tokens": "bpe"}, "tokens is 'bpe'"),
        ({"train_share": 0.0}, "train_share is 0.0; it has to be above 0 and below 1"),
        ({"validation_share": 1.0}, "validation_share is 1.0; it has to be a finite number, at least 0 and below 1"),
    ]:
        with pytest.raises(ValueError, match=message):
            Pairs(**fields)
    assert tokenised(" a  b ", "word") == ["a", "b"]
