"""SQuAD as a task: the cut by length, windows, answers over windows, F1 and EM of whole questions."""

from __future__ import annotations

import functools
import json
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lenmem import models
from lenmem.data import squad, wordpiece
from lenmem.evaluation import sets
from lenmem.tasks import spans
from lenmem.tasks.squad import Squad

PIECES = wordpiece.example()
SMALL = functools.partial(Squad, vocabulary_size=len(PIECES), max_length=40, stride=12, question_pieces=6)
"""Contexts of the example have 11 to 98 pieces; beside a question of 6 there is room for 31."""


def rows_of(task, split):
    """(question, context window, answer) of each row, as words."""
    rows = task.tables()[split]
    found = []
    for inputs, length, (start, end, words) in zip(rows.inputs, rows.input_lengths, rows.answers, strict=True):
        names = [PIECES[i] for i in inputs[:length]]
        first = names.index("[SEP]")
        assert names[0] == "[CLS]" and names[-1] == "[SEP]"
        found.append((names[1:first], names[first + 1 : -1], names[start : end + 1], words))
    return found


@pytest.mark.parametrize("share", [0.8, 0.5])
def test_longer_contexts_are_the_test(share):
    task = SMALL(train_share=share, validation_share=0.1)
    made = task.contents.windows
    parts = [made[split].questions for split in ("train", "validation", "test")]
    assert Counter(one.identity for part in parts for one in part) == Counter(
        one.identity for one in squad.read_directory("example")
    )
    assert len(parts[2]) == 240 - int(240 * share) and len(parts[1]) == int(240 * share) // 10
    lengths = [[len(one.context.split()) for one in part] for part in parts]
    assert all(of_part != sorted(of_part) for of_part in lengths[1:]), "the first questions have all lengths"
    lengths = [sorted(of_part) for of_part in lengths]
    assert max(lengths[0][-1], lengths[1][-1]) <= lengths[2][0]
    assert task.test_lengths == (lengths[2][0], lengths[2][-1])
    assert task.train_lengths == (8, max(lengths[0][-1], lengths[1][-1]))
    for windows in made.values():
        words = [len(windows.questions[n].context.split()) for n in windows.question]
        assert task.row_lengths(windows.rows).tolist() == words


def test_windows_hold_the_whole_context_and_the_answer():
    """Every window of a question is a piece of its context; the answer is in those that hold all of it."""
    task = SMALL()
    windows = task.contents.windows["test"]
    split = functools.partial(wordpiece.split, PIECES, lowercase=True)
    counts = Counter(windows.question.tolist())
    assert min(counts.values()) > 1
    answered = set()
    for number, (question, window, answer, _) in zip(windows.question, rows_of(task, "test"), strict=True):
        one = windows.questions[number]
        asked, context, right = (
            [PIECES[i] for i in split([t])[0].ids] for t in (one.question, one.context, one.answers[0][1])
        )
        assert question == asked[:6]
        assert any(context[at : at + len(window)] == window for at in range(len(context)))
        assert answer in (right, ["[CLS]"])
        answered |= {number} if answer == right else set()
    assert len(answered) == len(windows.questions)
    sizes = Counter(windows.rows.input_lengths.tolist())
    assert max(sizes) <= 40 and sizes[40] >= len(windows.questions) // 2


def outputs_for(task, split, chosen):
    """[R, 2, K] logits by which row r answers with the columns chosen[r], as sure as chosen says: (start, end, sum)."""
    outputs = np.zeros((len(chosen), 2, task.max_length), np.float32)
    for row, (start, end, total) in enumerate(chosen):
        outputs[row, 0, start], outputs[row, 1, end] = total / 2, total / 2
    return jnp.asarray(outputs)


def batch_of(task, split):
    count = task.examples_of(split)
    return jax.jit(task.source(split, count).batch)(jax.random.key(0), 0)


def test_right_columns_give_full_scores_and_the_surest_window_counts():
    """Answers of windows that lack the right one are wrong, but less sure. If they are surer, all is lost."""
    task = SMALL()
    windows, batch = task.contents.windows["test"], batch_of(task, "test")
    real = np.asarray(batch.targets)
    first = 1 + np.argmax(np.asarray(batch.inputs) == wordpiece.SEPARATOR, axis=1)
    answers = jax.jit(task.set_answers)

    def scores(sure_of_wrong):
        chosen = [
            (start, end, 8.0) if start else (begin, begin, sure_of_wrong)
            for (start, end), begin in zip(real, first, strict=True)
        ]
        return task.set_scores(answers(outputs_for(task, "test", chosen), batch), "test")

    right = scores(6.0)
    assert right["f1"].value == right["em"].value == 1 and "48 questions" in right["f1"].told
    worse = scores(10.0)
    alone = Counter(windows.question[real[:, 0] == 0].tolist())
    assert worse["em"].value == pytest.approx(1 - len(alone) / 48) and worse["f1"].value >= worse["em"].value


def test_answers_come_from_the_context_and_are_short():
    """Logits that prefer the question, padding, an end before the start, or far columns, all give a short span."""
    task = SMALL(answer_pieces=3)
    batch = batch_of(task, "test")
    outputs = jax.random.normal(jax.random.key(0), (len(batch.inputs), 2, 40)) + 9.0 * (jnp.arange(40) < 8)
    first, last, total = jax.jit(task.set_answers)(outputs, batch)
    allowed = np.asarray(spans.second_segment(batch.inputs, batch.input_mask, wordpiece.SEPARATOR))
    rows = np.arange(len(allowed))
    assert allowed[rows, first].all() and allowed[rows, last].all() and np.all((last - first >= 0) & (last - first < 3))
    np.testing.assert_allclose(total, outputs[rows, 0, first] + outputs[rows, 1, last], rtol=1e-6)


def test_only_questions_with_all_their_windows_are_scored():
    task = SMALL()
    windows, batch = task.contents.windows["test"], batch_of(task, "test")
    answers = [np.asarray(x) for x in task.set_answers(jnp.zeros((len(batch.inputs), 2, 40)), batch)]
    ends = np.flatnonzero(np.diff(windows.question)) + 1
    for count, whole in ((ends[0], 1), (ends[1] - 1, 1), (ends[1], 2), (len(windows.question), 48)):
        told = task.set_scores([x[:count] for x in answers], "test")["f1"].told
        assert f"{whole} questions" in told
    with pytest.raises(ValueError, match="no question is complete in the first 1 windows"):
        task.set_scores([x[:1] for x in answers], "test")


def test_texts_are_those_of_the_context():
    """With capitals and blanks, as the paragraph has them."""
    task = SMALL(max_length=128)
    windows = task.contents.windows["train"]
    batch = jax.jit(jax.vmap(lambda *row: task.example(row, 0)))(*windows.rows.arrays)
    chosen = [(start, end, 1.0) for start, end in np.asarray(batch.targets)]
    answers = jax.jit(task.set_answers)(outputs_for(task, "train", chosen), batch)
    texts = windows.texts(jax.tree.map(np.asarray, answers))
    assert texts == {n: one.answers[0][1] for n, one in enumerate(windows.questions)}
    assert {"Ada", "the mill"} <= set(texts.values())


def test_any_model_can_learn_columns_and_seeds_are_scored_apart():
    task = SMALL()
    model = models.make("transformer", hidden_size=4, heads=1, layers=1, feedforward_size=4).clone(spec=task.spec)
    batch = task.source("test", 2).batch(jax.random.key(0), 0)
    init = jax.jit(lambda key: model.init(key, batch.inputs, batch.input_mask, batch.target_mask)["params"])
    params = jax.tree.map(lambda *x: jnp.stack(x), init(jax.random.key(0)), init(jax.random.key(1)))
    params = jax.tree.map(lambda x: jnp.concatenate([x, jnp.full_like(x[:1], jnp.nan)]), params)
    count = len(task.tables()["test"])
    assert count == task.examples_of("test")
    scores = sets.set_scores(model, params, task, count, batch_size=64)
    assert scores["f1"].values.shape == (3,) and np.isnan(scores["em"].values[2])
    one, _, _ = sets.set_answers(model, params, task, count, batch_size=64)
    again = task.set_scores(one, "test")
    assert scores["f1"].values[0] == again["f1"].value
    assert all(0 <= again[name].value <= 1 for name in ("f1", "em"))
    with pytest.raises(ValueError, match="the examples of 'train' come in another order in each pass"):
        sets.set_scores(model, params, task, 4, split="train")


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"directory": "nowhere"}, r"nowhere/train-v1\.1\.json cannot be read"),
        ({"vocabulary": "nowhere"}, r"nowhere cannot be read .*expected a vocab\.txt"),
        ({"train_share": 0.0}, "train_share is 0.0"),
        ({"train_share": 0.001}, "example has 240 questions, too few for a train_share of 0.001"),
        ({"vocabulary_size": 100}, r"example has \d+ pieces; vocabulary_size is 100"),
        ({"separator": 3}, r"example has \[SEP\] at id 102; separator is 3"),
        ({"question_pieces": 60}, "max_length is 40: questions of 60 pieces and 3 marks leave no room"),
        ({"max_length": 7}, "max_length is 7; it must be an integer, at least 8"),
    ],
)
def test_fields_that_do_not_fit(fields, message):
    with pytest.raises(ValueError, match=message):
        SMALL(**fields).tables()


def test_a_context_of_another_file_is_read(tmp_path):
    """Two gold answers, and a name that the example lacks: characters are counted, not bytes."""
    context = "Zoë kept 3 £ in the Café “Ōtsu”. She left."
    qas = [
        {"id": str(n), "question": "Where?", "answers": [{"answer_start": context.index(text), "text": text}]}
        for n, text in enumerate(("the Café “Ōtsu”", "3 £"))
    ]
    for name, count in (("train-v1.1.json", 1), ("dev-v1.1.json", 4)):
        paragraphs = [{"context": context + " Gone." * n, "qas": qas} for n in range(count)]
        (tmp_path / name).write_text(json.dumps({"data": [{"title": "", "paragraphs": paragraphs}]}))
    task = SMALL(directory=str(tmp_path), max_length=120)
    windows, batch = task.contents.windows["test"], batch_of(task, "test")
    chosen = [(start, end, 1.0) for start, end in np.asarray(batch.targets)]
    answers = jax.jit(task.set_answers)(outputs_for(task, "test", chosen), batch)
    texts = windows.texts(jax.tree.map(np.asarray, answers))
    assert sorted(texts.values()) == ["3 £", "the Café “Ōtsu”"]


def test_a_context_is_as_long_as_its_words_are_many(tmp_path):
    """And not as its letters."""
    for name, context in (
        ("train-v1.1.json", "He is at the mill ."),
        ("dev-v1.1.json", "Enormous lighthouses everywhere"),
    ):
        answer = {"answer_start": 0, "text": context.split()[0]}
        paragraph = {"context": context, "qas": [{"id": name, "question": "Where?", "answers": [answer]}]}
        (tmp_path / name).write_text(json.dumps({"data": [{"title": "", "paragraphs": [paragraph]}]}))
    task = SMALL(directory=str(tmp_path), train_share=0.5)
    assert (task.train_lengths, task.test_lengths) == ((3, 3), (6, 6))


def test_a_missing_library_is_one_line(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ValueError, match=r"^subwords need: pip install 'lenmem\[text\]'$"):
        SMALL(data_seed=7).tables()
    assert Squad().spec.vocabulary == 30_522  # so that tasks can be listed
