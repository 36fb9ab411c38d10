"""Parallel texts: files, subwords, the cut by length, perplexity and BLEU."""

from __future__ import annotations

import functools
import gzip
import itertools
import json
import re
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lenmem import Experiment, Training, cli, models, tasks
from lenmem.data import parallel_text, subwords
from lenmem.evaluation import sets
from lenmem.evaluation.lengths import Evaluation
from lenmem.evaluation.metrics import score
from lenmem.tasks.translation import Translation, bleu
from lenmem.training import train
from lenmem.training.run_directory import read_metrics

PAIRS = parallel_text.example()
SPLITS = {"train": PAIRS[:300], "val": PAIRS[300:350], "test_2016_flickr": PAIRS[350:]}


@pytest.fixture
def directory(tmp_path) -> Path:
    """The example as published: compressed files, one sentence on each line; the last part is not compressed."""
    for part, pairs in SPLITS.items():
        for at, language in enumerate(("en", "de")):
            text = "".join(f"{pair[at]}\n" for pair in pairs).encode()
            if part == "val":
                (tmp_path / f"{part}.{language}").write_bytes(text)
            else:
                (tmp_path / f"{part}.{language}.gz").write_bytes(gzip.compress(text))
    return tmp_path


def texts(task, split):
    """(input, answer) of all rows of a split."""
    count = len(task.tables()[split])
    batch = jax.jit(task.source(split, count).batch)(jax.random.key(0), 0)
    inputs = [row[mask].tolist() for row, mask in zip(*map(np.asarray, (batch.inputs, batch.input_mask)), strict=True)]
    return list(zip(task.texts(inputs), task.texts(np.asarray(batch.targets).tolist()), strict=True))


@pytest.mark.parametrize("share", [0.8, 0.5])
def test_sentences_with_more_words_are_the_test(directory, share):
    task = Translation(directory=str(directory), train_share=share, vocabulary_size=300, batches="mixed")
    parts = [texts(task, split) for split in ("train", "validation", "test")]
    assert sorted(itertools.chain(*parts)) == sorted(PAIRS)
    held, longer = len(parts[1]), parts[2]
    assert len(longer) == 400 - int(400 * share) and held == int(400 * share) // 10
    most = max(len(one.split()) for one, _ in parts[0] + parts[1])
    assert most <= min(len(one.split()) for one, _ in longer)
    rows = task.tables()
    assert task.test_lengths == (rows["test"].input_lengths.min(), rows["test"].input_lengths.max())
    assert task.spec.shapes(9) == (9, max(part.answer_lengths.max() for part in rows.values()) + 1)


def test_a_text_is_its_subwords_and_back():
    """Also one with letters that the encoding has never seen; only texts that are given shape it."""
    encoding = subwords.learned(["der hund", "der kunde"] * 9, 262)
    rows = subwords.encoded(encoding, ["der hund", "Çà et là — 漢字 ", ""])
    assert subwords.decoded(encoding, rows) == ["der hund", "Çà et là — 漢字 ", ""]
    names = subwords.names(encoding)
    assert len(names) == len(set(names)) == 262 and {"der", "un"} <= set(names)
    assert names[rows[0][0]] == "der" and max(map(max, rows[:2])) < 262
    assert subwords.learned(["der hund", "der kunde"] * 9, 262) == encoding
    assert len(subwords.names(subwords.learned(["ab"], 10))) == 256


def test_subwords_are_those_of_the_shorter_sentences(directory):
    """Other longer sentences change no subword."""
    first = Translation(directory=str(directory), vocabulary_size=300).contents.encoding
    for language in ("en", "de"):
        path = directory / f"val.{language}"
        lines = path.read_text().splitlines()
        most = max(range(len(lines)), key=lambda at: len(lines[at].split()))
        lines[most] += " zyzzyva" * 999
        path.write_text("\n".join(lines) + "\n")
    task = Translation(directory=str(directory), vocabulary_size=300, data_seed=1)
    assert task.contents.encoding == first
    assert any("zyzzyva" in one for one, _ in texts(task, "test"))


@pytest.mark.parametrize(
    "name, contents, message",
    [
        ("val.de", None, r"has neither val\.de nor val\.de\.gz\. Did you mean 'val\.en'"),
        ("val.de", b"eins\nzwei\n", r"val\.en has 50 lines and val\.de has 2, so line 3 has no translation"),
        ("val.de", b"eins\n\nzwei\n", r"val\.de, line 2: it is empty; expected a sentence"),
        ("val.de", b"eins\nzw\xf6lf\n", r"val\.de, line 2: it is not UTF-8"),
        ("val.de", b"", r"val\.de is empty; expected a sentence on each line"),
        ("train.en.gz", "cut", r"train\.en\.gz, line \d+: it is cut off"),
        ("train.en.gz", b"no gzip", r"train\.en\.gz, line 1: it is not a complete gzip file"),
    ],
)
def test_a_missing_or_wrong_file_is_one_line(directory, name, contents, message):
    path = directory / name
    if contents is None:
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-20] if contents == "cut" else contents)
    with pytest.raises(ValueError, match=message) as error:
        Translation(directory=str(directory)).tables()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"directory": "nowhere"}, r"nowhere cannot be read \(No such file .*expected a directory with train\.en"),
        ({"train_share": 0.001}, "example has 400 pairs, too few for a train_share of 0.001"),
        ({"train_share": 0.0}, "train_share is 0.0"),
        ({"parts": ()}, r"parts is \(\)"),
        ({"vocabulary_size": 255}, "vocabulary_size is 255; it must be an integer, at least 256"),
    ],
)
def test_fields_that_do_not_fit(fields, message):
    with pytest.raises(ValueError, match=message):
        Translation(**({"vocabulary_size": 300} | fields)).tables()


WHOLE_WORDS = 400
"""Subwords for all words of the example, so that rows are short."""


def small(task):
    """PANM without another layer in its decoder."""
    sizes = {"hidden_size": 8, "heads": 2, "feedforward_size": 8, "encoder_layers": 1, "decoder_layers": 1}
    return models.make("transformer_panm", **sizes).clone(spec=task.spec)


@functools.cache
def network(name):
    """(task, model, its parameters for two seeds)."""
    task = Translation(vocabulary_size=WHOLE_WORDS)
    model = small(task) if name == "transformer_panm" else models.make(name, hidden_size=8).clone(spec=task.spec)
    shapes = jax.eval_shape(lambda: task.source("test", 1).batch(jax.random.key(0), 0))
    asked = [jnp.ones(leaf.shape, leaf.dtype) for leaf in (shapes.inputs, shapes.input_mask, shapes.target_mask)]
    init = jax.jit(jax.vmap(lambda key: model.init(key, *asked)["params"]))
    return task, model, jax.tree.map(np.asarray, init(jax.random.split(jax.random.key(1), 2)))


@pytest.mark.parametrize("name", [pytest.param("transformer_panm", marks=pytest.mark.thorough), "lstm"])
def test_perplexity_is_that_of_all_right_answers(name):
    """A float64 twin over all subwords of some answers, for a network that reads the answer so far, and for one that
    answers without."""
    task, model, params = network(name)
    batch = jax.jit(lambda: task.source("test", 12).batch(jax.random.key(0), 0))()
    asked = batch.inputs, batch.input_mask, batch.target_mask
    measured = score(model, params, task, 12, batch_size=6)["perplexity"]
    given = jax.jit(jax.vmap(lambda params: model.apply({"params": params}, *asked, targets=batch.targets)))(params)
    for value, outputs in zip(measured, np.asarray(given, np.float64), strict=True):
        chosen = np.take_along_axis(outputs, np.asarray(batch.targets)[..., None], axis=-1)[..., 0]
        nats = np.log(np.exp(outputs).sum(-1)) - chosen
        assert value == pytest.approx(np.exp(nats[np.asarray(batch.score_mask)].mean()), rel=1e-4)


def test_bleu_is_that_of_the_library():
    references = ["der hund läuft in den wald .", "ein mann schläft ."]
    own = [references, ["der hund läuft in die stadt .", "ein mann schläft ."], ["x", "y"]]
    same, near, far = (bleu(texts, references) for texts in own)
    assert same.value == pytest.approx(1) and far.value == 0
    # by hand: 9 of 11 words, 6 of 9 pairs, 4 of 7 triples, 2 of 5 quadruples
    assert near.value == pytest.approx((9 / 11 * 6 / 9 * 4 / 7 * 2 / 5) ** 0.25)
    assert "tok:13a" in near.told


@pytest.mark.thorough
def test_bleu_is_that_of_the_first_examples_and_a_dead_seed_has_none():
    """Answers that are right on the first rows of the test, and on no others; more are asked for than there are."""
    task, model, params = network("transformer_panm")
    rows, count = task.tables()["test"], task.examples_of("test")
    right = np.full((count, rows.answers.shape[1] + 1), task.end)
    right[:, :-1] = np.where(np.arange(rows.answers.shape[1]) < rows.answer_lengths[:, None], rows.answers, task.end)
    wrong = np.where(np.arange(count)[:, None] < 9, right, task.end)
    assert task.set_scores(wrong[:9], "test")["bleu"].value == pytest.approx(1)
    assert task.set_scores(wrong, "test")["bleu"].value < 0.5 < task.set_scores(right, "test")["bleu"].value
    params = jax.tree.map(lambda x: np.stack([x[0], np.nan * x[1]]), params)
    scores = sets.set_scores(model, params, task, 3, batch_size=2)["bleu"]
    assert np.isfinite(scores.values[0]) and np.isnan(scores.values[1])


@pytest.mark.slow
def test_a_training_writes_perplexity_by_epoch_and_evaluate_adds_bleu(directory, tmp_path, monkeypatch, capsys):
    """The parameters with the lowest perplexity are kept."""
    monkeypatch.chdir(tmp_path)
    task = Translation(directory=str(directory), vocabulary_size=WHOLE_WORDS, validation_share=0.0)
    options = {"selection": "running_ood", "selection_metric": "perplexity", "validate_every": 1, "log_every": 1}
    training = Training(steps=3, batch_size=10, seeds=2, validation_batches=2, **options)
    evaluation = Evaluation(lengths=(30,), samples=10, test_examples=20, batch_size=10)
    result = train(Experiment(task, small(task), training, evaluation), directory="runs/tiny")
    history = np.array([entry["test/perplexity"] for entry in read_metrics(Path("runs/tiny"))])
    assert history.shape == (3, 2) and np.all(history > 1)
    assert [entry["test/perplexity"] for entry in result.history] == history.tolist()
    cli.main(["evaluate", "runs/tiny"])
    printed = capsys.readouterr().out
    (kept,) = re.findall(r"perplexity on the test: ([\d.]+), ([\d.]+) \(20 answers, per subword\)", printed)
    np.testing.assert_allclose([float(value) for value in kept], history.min(axis=0), atol=0.01)
    assert re.search(r"BLEU on the test: \d+\.\d+, \d+\.\d+ \(nrefs:1", printed)


def test_a_missing_library_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    with pytest.raises(ValueError, match=r"^BLEU needs: pip install 'lenmem\[text\]'$"):
        bleu(["ein"], ["ein"])
    with pytest.raises(ValueError, match=r"^subwords need: pip install 'lenmem\[text\]'$"):
        Translation(vocabulary_size=257).tables()
    assert tasks.make("translation").spec.vocabulary == 8000  # so that tasks can be listed


def test_example_sentences_are_grammatical():
    assert PAIRS[1] == (
        "cleo walks into the forge and eve walks into the forge.",
        "Cleo geht in die Schmiede und Eve geht in die Schmiede.",
    )
    assert json.dumps(PAIRS) and jnp.all(jnp.array([len(one.split()) for one, _ in PAIRS]) >= 5)
