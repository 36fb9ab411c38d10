"""A user's files: contents, splits, and messages about faults."""

from __future__ import annotations

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lenmem import Experiment, Training, export_run, import_run, load, options, runs, train
from lenmem.data.pairs import EXAMPLE, read_pairs, tokenised
from lenmem.evaluation.lengths import Evaluation
from lenmem.models import make as make_model
from lenmem.runs.answers import typed_batch
from lenmem.runs.measuring import holds_same
from lenmem.serialize import from_plain, to_plain
from lenmem.tasks import make
from lenmem.tasks.pairs import Pairs
from lenmem.tasks.rows import share_of


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
    held = count // 5
    assert (len(tables["train"]), len(tables["validation"])) == (count - held, held)
    assert task.train_lengths == (1, count // 10)
    assert task.test_lengths == (count // 10 + 1, 10)
    seen = set()
    for split in task.splits:
        batch = jax.jit(task.source(split, len(tables[split])).batch)(jax.random.key(0), 0)
        got = {words(task, batch, row) for row in range(len(tables[split]))}
        assert len(got) == len(tables[split])
        assert not got & seen
        seen |= got
        assert all(task.lengths_of(split)[0] <= len(text.split()) <= task.lengths_of(split)[1] for text, _ in got)
    assert seen == set(ROWS)


def test_a_run_is_not_used_with_a_file_that_has_changed(tmp_path):
    def experiment():
        task = Pairs(path=str(tmp_path / "pairs.tsv"))
        training = Training(steps=2, batch_size=2, log_every=1, checkpoint_every=1)
        return Experiment(task, make_model("elman", hidden_size=4), training)

    table(tmp_path / "pairs.tsv", ROWS)
    train(experiment(), directory=tmp_path / "run")
    assert holds_same(experiment(), tmp_path / "run")
    files = tmp_path / "run.safetensors", tmp_path / "resumable.safetensors"
    for file in files:
        export_run(load(tmp_path / "run"), file, with_optimizer="resumable" in file.name)
    table(tmp_path / "pairs.tsv", [(b, a) for a, b in ROWS])
    for file in files:
        with pytest.raises(ValueError, match="the data file of .* has changed since its training"):
            load(file)
    with pytest.raises(ValueError, match="the data file of .* has changed since its training"):
        import_run(files[1], tmp_path / "imported")
    assert not holds_same(experiment(), tmp_path / "run")
    with pytest.raises(ValueError, match="the data file of .*run has changed since its training"):
        load(tmp_path / "run")
    with pytest.raises(ValueError, match="cannot be resumed .* its data file has changed"):
        train(experiment(), directory=tmp_path / "run", resume=True)
    table(tmp_path / "pairs.tsv", ROWS)
    load(tmp_path / "run")


def test_a_byte_order_mark_is_no_token(tmp_path):
    (tmp_path / "pairs.tsv").write_bytes(b"\xef\xbb\xbf" + "".join(f"{a}\t{b}\n" for a, b in ROWS).encode())
    assert "w0" in Pairs(path=str(tmp_path / "pairs.tsv")).input_names
    assert not any("\ufeff" in name for name in Pairs(path=str(tmp_path / "pairs.tsv")).input_names)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("old.tsv", b"a\tb\rc\td\r", "line 1: a carriage return; lines must end with a line feed"),
        ("half.jsonl", b'{"a": "\\ud800", "b": "y"}\n', "line 1: 'a' is .*half of a surrogate pair"),
    ],
)
def test_texts_that_cannot_be_kept_are_refused(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        list(read_pairs(tmp_path / name))


def test_a_length_that_no_row_has_is_refused(tmp_path):
    rows = [(" ".join(["a"] * n), "b") for n in (3, 4, 4, 6, 9)] + [(" ".join(["b"] * n), "a") for n in (3, 4, 6, 9)]
    task = Pairs(path=table(tmp_path / "pairs.tsv", rows))
    for length, message in (
        (5, "has length 5; the nearest are 4 and 6"),
        (1, "shortest .* 3, got 1"),
        (10, "9, got 10"),
    ):
        with pytest.raises(ValueError, match=message):
            Evaluation(lengths=(3, length)).lengths_for(task)
        with pytest.raises(ValueError, match=message):
            runs.example_batch(task, length)


def test_more_than_256_tokens_have_ids_of_their_own(tmp_path):
    rows = [(f"a{i} b{i}", f"c{i}") for i in range(300)]
    task = Pairs(path=table(tmp_path / "pairs.tsv", rows))
    assert task.spec.vocabulary == 600
    assert task.spec.output_size == 301
    batch = task.source("test", 60).batch(jax.random.key(0), 0)
    assert {words(task, batch, row) for row in range(60)} <= set(rows)


def inputs_of(task, split):
    rows = task.tables()[split]
    return {(*row[:n],) for row, n in zip(rows.inputs.tolist(), rows.input_lengths, strict=True)}


@pytest.mark.parametrize("share", [0.05, 0.35, 0.5, 0.95])
def test_no_input_is_on_two_sides(share):
    """Repeated lines, with the same answer or another one, are kept together, and no line is lost."""
    rows = [(f"w{i % 7} w{i % 3}" + " x" * (i % 2), f"n{i}") for i in range(210)]
    task = Pairs(rows=rows, train_share=share, validation_share=0.3)
    train, validation, test = (inputs_of(task, split) for split in ("train", "validation", "test"))
    assert train and test and not train & validation and not (train | validation) & test
    assert len(train | validation | test) == 42
    assert sum(map(len, task.tables().values())) == 210
    assert task.train_lengths[1] <= task.test_lengths[0]


def test_a_tenth_of_25000_is_2500():
    pairs = [(f"w{i}", "x") for i in range(25_000)] + [("long one", "x")] * 2_500
    tables = Pairs(rows=pairs, train_share=10 / 11).tables()
    assert {split: len(rows) for split, rows in tables.items()} == {"train": 22_500, "validation": 2_500, "test": 2_500}
    assert [share_of(100, share) for share in (0.29, 0.57, 0.999)] == [29, 57, 99]  # 0.29 * 100 is below 29


def test_chance_counts_the_end_symbol_as_a_slot():
    assert Pairs(rows=[("a", "x x x"), ("b", "x")]).spec.chance == (3 / 4 + 1 / 2) / 2


class Rows:
    """The part of a Hugging Face dataset that we use: repeated iteration over dicts."""

    def __iter__(self):
        return ({"source": a, "target": b, "id": 3} for a, b in ROWS)


@pytest.mark.parametrize(
    ("rows", "columns"),
    [
        (ROWS, None),
        ([list(row) for row in ROWS], None),
        (iter(ROWS), None),
        (({"in": a, "out": b} for a, b in ROWS), None),
        (Rows(), ("source", "target")),
        ([(1, b, a) for a, b in ROWS], ("2", "1")),
    ],
)
def test_rows_in_memory_are_those_of_a_file(tmp_path, rows, columns):
    of_file = Pairs(path=table(tmp_path / "pairs.tsv", ROWS))
    task = make("pairs", rows=rows, columns=columns)
    assert task == make("pairs", rows=ROWS) and hash(task) == hash(make("pairs", rows=ROWS))
    assert task != make("pairs", rows=ROWS[1:])
    assert repr(task.rows) == "<100 pairs>"
    for split, table_of_split in of_file.tables().items():
        for array, wanted in zip(task.tables()[split].arrays, table_of_split.arrays, strict=True):
            np.testing.assert_array_equal(array, wanted)
    assert dataclasses.replace(task, data_seed=1).rows is task.rows


def test_rows_in_memory_are_saved_as_data():
    task = make("pairs", rows=Rows(), columns=("source", "target"), data_seed=3)
    saved = json.loads(json.dumps(to_plain(task)))
    assert from_plain(saved) == task
    assert saved["rows"][0] == list(ROWS[0])
    del saved["rows"]  # as before the field existed
    assert from_plain(saved) == make("pairs", data_seed=3)


@pytest.mark.parametrize(
    ("rows", "columns", "message"),
    [
        ([], None, "rows is empty; expected pairs of texts"),
        (5, None, "rows is a int; it must be an iterable of pairs of texts, or of mappings"),
        ({"train": ROWS}, None, "rows is a dict; it must be an iterable"),
        (["ab", "cd"], None, r"rows\[0\]: it is 'ab'; expected a pair of texts"),
        ([("a", "b"), ("a",)], None, r"rows\[1\]: columns 0 and 1 are needed; it has 1"),
        ([{"a": "x", "b": "y"}], ("a", "c"), r"rows\[0\]: there is no key 'c'; there are a, b"),
        ([{"id": 3, "a": "x"}], None, r"rows\[0\]: 'id' is 3; expected a text. `columns` names"),
        ([("a", " "), (" ", "b")], None, r"rows\[1\]: the input ' ' has no word"),
        ([("a", "b")] * 9, None, "rows has 9 pairs of 1 inputs, too few"),
        ([("a" * 2**24, "b")], None, "more than 16,777,216 characters, .* write them to a"),
    ],
)
def test_faults_of_rows_in_memory_are_named(rows, columns, message):
    with pytest.raises(ValueError, match=message):
        make("pairs", rows=rows, columns=columns).tables()


@pytest.mark.parametrize(("tokens", "wanted"), [("character", "h é _ y"), ("byte", "68 c3 a9 20 79")])
def test_characters_and_bytes(tmp_path, tokens, wanted):
    rows = [("éh y", "x"), ("hé y", "x")] * 5
    task = Pairs(path=table(tmp_path / "pairs.tsv", rows), tokens=tokens, validation_share=0.0, train_share=0.3)
    assert words(task, task.source("test", 2).batch(jax.random.key(0), 0), 0)[0] == wanted
    assert task.train_lengths == (len(wanted.split()),) * 2


def test_white_space_has_names_that_can_be_typed(tmp_path):
    rows = [("a _", "x"), ("日\u3000本", "x")] * 5
    task = Pairs(path=table(tmp_path / "pairs.tsv", rows), tokens="character", validation_share=0.0)
    assert set(task.input_names) == {"a", "␣", "_", "日", "U+3000", "本"}
    typed = typed_batch(task, "␣ _ 日 U+3000").inputs[0].tolist()
    assert [task.file.input_tokens[number] for number in typed] == [" ", "_", "日", "\u3000"]
    with pytest.raises(ValueError, match=r"got '日\\u3000本'"):
        typed_batch(task, "日\u3000本")


def test_objects_in_lines(tmp_path):
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps({"source": a, "target": b, "id": 3}) + "\n" for a, b in ROWS))
    task = Pairs(path=str(path), columns=("source", "target"))
    got = task.source("test", 20).batch(jax.random.key(0), 0)
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


def test_another_content_under_one_name_is_another_task(tmp_path, monkeypatch):
    """Nothing that was read or compiled for the first file is used for the second."""
    before = Pairs(path=table(tmp_path / "pairs.tsv", [("a" + " a" * n, "b") for n in range(10)]))
    first = before.source("train", 4).batch(jax.random.key(0), 0)
    assert before.spec.output_size == 2 and set(np.unique(first.targets)) <= {0, 1}
    table(tmp_path / "pairs.tsv", [("a" + " c" * n, "d e") for n in range(10)])
    after = Pairs(path=before.path)
    assert after != before and after == Pairs(path=before.path)
    assert after.spec.output_size == 3 and int(after.source("train", 4).batch(jax.random.key(0), 0).targets.max()) == 2
    monkeypatch.chdir(tmp_path)
    here = Pairs(path="pairs.tsv")
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    assert Pairs(path=table(tmp_path / "other" / "pairs.tsv", [("f", "g")] * 9)) != here != Pairs(path="pairs.tsv")


def test_a_task_made_by_options_has_the_content_of_its_own_file(tmp_path):
    path = table(tmp_path / "pairs.tsv", [("f", "g")] * 9)
    assert options.parse(Pairs, "train", ["--path", path], tokens="character") == Pairs(path=path, tokens="character")


@pytest.mark.parametrize(
    ("name", "text", "columns", "message"),
    [
        ("a.tsv", "x y\tz\nno tab\n", ("0", "1"), r"a.tsv, line 2: there is no tab; a table has columns sep"),
        ("a.csv", "x,y\n", None, r"a.csv, line 1: there is no tab; .* other files must be \*.jsonl"),
        ("a.tsv", "x\ty\n", ("0", "2"), r"line 1: columns 0 and 2 are needed; it has 2"),
        ("a.tsv", "x\ty\n", ("a", "b"), r"line 1: columns of a table are numbers"),
        ("a.tsv", "x\ty\n\ty\n", ("0", "1"), r"line 2: the input '' has no word"),
        ("a.tsv", "", ("0", "1"), r"a.tsv is empty"),
        ("a.tsv", "x\ty\n", ("0", "1"), r"has 1 pairs of 1 inputs, too few for a train_share of 0.8"),
        ("a.jsonl", '{"a": "x", "b": "y"}\n{"a": "x"}\n', ("a", "b"), r"line 2: there is no key 'b'; there are a"),
        ("a.jsonl", '{"a": "x", "b": 3}\n', ("a", "b"), r"line 1: 'b' is 3; expected a text"),
        ("a.jsonl", '["x"]\n', ("a", "b"), r"line 1: it holds list"),
        ("a.jsonl", '{"a": "x"\n', ("a", "b"), r"line 1: it is not valid JSON"),
    ],
)
def test_faults_are_named_with_their_line(tmp_path, name, text, columns, message):
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        Pairs(path=str(path), columns=columns).tables()


def test_other_faults(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=r"nowhere.tsv cannot be read \(No such file or directory\)$"):
        _ = Pairs(path=str(tmp_path / "nowhere.tsv")).spec
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=rf"^moved.tsv cannot be read \(No such file or directory in {tmp_path}\)$"):
        _ = Pairs(path="moved.tsv").spec
    (tmp_path / "latin.tsv").write_bytes("a\tb\né\tb\n".encode("latin-1"))
    with pytest.raises(ValueError, match=r"line 2: it is not UTF-8, from byte 0 on"):
        list(read_pairs(tmp_path / "latin.tsv"))
    for fields, message in [
        ({"tokens": "bpe"}, "tokens is 'bpe'"),
        ({"path": "a.tsv", "rows": ROWS}, "give either rows or a path; got both, with the path a.tsv"),
        ({"train_share": 0.0}, "train_share is 0.0; it must be above 0 and below 1"),
        ({"validation_share": 1.0}, "validation_share is 1.0; it must be a finite number, at least 0 and below 1"),
    ]:
        with pytest.raises(ValueError, match=message):
            Pairs(**fields)
    assert tokenised(" a  b ", "word") == ["a", "b"]


def test_a_length_that_no_row_has_is_not_measured(tmp_path):
    task = Pairs(path=table(tmp_path / "pairs.tsv", ROWS))
    longest = task.curve_lengths[-1]
    assert Evaluation(lengths=(longest,)).lengths_for(task) == (longest,)
    message = f"the longest example of Pairs has length {longest}, got {longest + 1}"
    with pytest.raises(ValueError, match=message):
        Evaluation(lengths=(1, longest + 1)).lengths_for(task)
    with pytest.raises(ValueError, match=message):
        runs.example_batch(task, longest + 1)
    Evaluation(lengths=(40,)).lengths_for(make("ctl"))  # draws other examples than its rows


def test_slots_after_the_end_have_no_right_answer(tmp_path):
    task = Pairs(path=table(tmp_path / "pairs.tsv", [("x" + " x" * n, "a" + " a" * (9 - n)) for n in range(10)]))
    batch = runs.example_batch(task, 10)
    outputs = jnp.zeros((*batch.target_mask.shape, task.spec.output_size))
    answer = runs.answered(task, batch, np.asarray(outputs), np.asarray(runs.slots_right(task, batch, outputs)))
    count = int(batch.score_mask.sum())
    assert answer.right[count - 1 :] == ["<eos>", *[""] * (len(answer.right) - count)]
    assert sum(answer.scored) == count < len(answer.right)
