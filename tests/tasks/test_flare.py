"""FLaRe's directories: a small one is written, read back as examples, and damaged in every way."""

from __future__ import annotations

import itertools
import json
import random
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lenmem import tasks
from lenmem.catalogue.checks import check_flare
from lenmem.data.flare import SPLITS, String, read_strings
from lenmem.tasks.base import draw
from lenmem.types import Batch

LONGEST = {"train": 6, "validation": 6, "validation_long": 10, "test_short": 6, "test": 14}


def belongs(words) -> bool:
    """The language: `ab` any number of times, with whole words as tokens."""
    return list(words) == ["ay", "bee"] * (len(words) // 2)


def continuations(prefix) -> dict:
    """An object of next-symbols.jsonl, by trying all continuations of up to two tokens."""
    ends = [end for size in range(3) for end in itertools.product(("ay", "bee", "sea"), repeat=size)]
    good = [end for end in ends if belongs([*prefix, *end])]
    return {"s": " ".join(sorted({end[0] for end in good if end})), "e": () in good}


def write(folder: Path, strings):
    """The three files."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [[continuations(words[:n]) for n in range(len(words) + 1)] for words in strings if belongs(words)]
    files = {
        "main.tok": [" ".join(words) for words in strings],
        "labels.txt": [str(int(belongs(words))) for words in strings],
        "next-symbols.jsonl": [json.dumps(line) for line in lines],
    }
    for name, content in files.items():
        (folder / name).write_text("".join(f"{line}\n" for line in content))


@pytest.fixture
def directory(tmp_path):
    """A language of the form that is published; returns its path. The empty string is in each split."""
    rng = random.Random(0)
    for split, folder in SPLITS.items():
        words = [["ay", "bee"] * n for n in range(LONGEST[split] // 2 + 1)]
        words += [rng.choices(("ay", "bee", "sea"), k=rng.randint(1, LONGEST[split])) for _ in range(12)]
        rng.shuffle(words)
        write(tmp_path / folder, words)
    return str(tmp_path)


def strings_of(task, split):
    """The rows of a split: (words of the input, answer)."""
    count = len(task.tables()[split])
    batch = jax.tree.map(np.asarray, jax.jit(task.source(split, count).batch)(jax.random.key(0), 0))
    for row in range(count):
        words = [task.input_names[token] for token in batch.inputs[row][batch.input_mask[row]]]
        yield words, batch.targets[row][batch.target_mask[row]]


@pytest.mark.parametrize("split", SPLITS)
def test_labels(directory, split):
    """Each string of the file once, with its label."""
    task = tasks.make("flare", directory=directory)
    found = sorted((" ".join(words), int(answer[0])) for words, answer in strings_of(task, split))
    lines = (Path(directory) / SPLITS[split] / "main.tok").read_text().split("\n")[:-1]
    assert found == sorted((line, int(belongs(line.split()))) for line in lines)
    assert task.splits[split] == (1, max(len(line.split()) for line in lines))


@pytest.mark.parametrize("split", SPLITS)
def test_what_may_follow(directory, split):
    """For each string of the language, and each of its prefixes."""
    task = tasks.make("flare", directory=directory, answer="next_symbols")
    assert task.input_names == ("ay", "bee", "<begin>")  # `sea` is in no string of the language
    seen = set()
    for (begin, *words), answer in strings_of(task, split):
        assert begin == "<begin>" and belongs(words) and len(answer) == len(words) + 1
        for n, bits in enumerate(answer):
            names = {name for name, bit in zip(task.answer_names, bits, strict=True) if bit}
            wanted = continuations(words[:n])
            assert (" ".join(sorted(names - {"<end>"})), "<end>" in names) == (wanted["s"], wanted["e"])
        seen.add(len(words))
    assert seen == set(range(0, LONGEST[split] + 1, 2))


def test_specs(directory):
    label, following = (tasks.make("flare", directory=directory, answer=a) for a in ("label", "next_symbols"))
    assert (label.spec.vocabulary, label.spec.output_size, label.shapes(9)) == (3, 2, (9, 1))
    assert (following.spec.vocabulary, following.spec.output_size, following.shapes(9)) == (3, 3, (9, 9))
    assert following.spec.causal and following.spec.alignment == "aligned"
    strings = (Path(directory) / "main.tok").read_text().split("\n")[:-1]
    positive = sum(belongs(line.split()) for line in strings)
    assert label.spec.chance == max(positive, len(strings) - positive) / len(strings)
    assert label.test_lengths[1] == max(label.curve_lengths) and label.train_lengths == (1, 6)


def test_chance_is_the_token_accuracy_of_the_best_constant_answer(directory):
    task = tasks.make("flare", directory=directory, answer="next_symbols")
    rows = task.tables()["train"]
    batch = Batch(*jax.vmap(lambda row: task.example(row, 8))(tuple(map(jnp.asarray, rows.arrays))))
    scores = [
        task.metrics(jnp.broadcast_to(2.0 * jnp.array(bits) - 1, batch.targets.shape), batch)["token_accuracy"].mean()
        for bits in itertools.product((0, 1), repeat=task.spec.output_size)
    ]
    assert task.spec.chance == pytest.approx(float(max(scores)))


def test_samples_have_the_length_asked_for(directory):
    task = tasks.make("flare", directory=directory, answer="next_symbols")
    batch = jax.jit(lambda key: draw(task, key, jnp.array([1, 5, 15]), 16))(jax.random.key(0))
    assert batch.input_mask.sum(axis=1).tolist() == [1, 5, 15]
    right = task.metrics(2 * batch.targets - 1, batch)
    wrong = task.metrics((2 * batch.targets - 1).at[1, 2, 0].multiply(-1), batch)
    assert right["exact_match"].tolist() == [1, 1, 1] and wrong["exact_match"].tolist() == [1, 0, 1]
    np.testing.assert_allclose(wrong["token_accuracy"], [1, 0.8, 1])


def test_the_empty_string_counts_as_length_1(directory):
    task = tasks.make("flare", directory=directory)
    rows = task.tables()["test"]
    assert rows.input_lengths.min() == 0 and task.row_lengths(rows).min() == 1


def test_the_example_is_parity():
    """It needs no files."""
    task = tasks.make("flare")
    for words, answer in strings_of(task, "test"):
        assert int(answer[0]) == (words.count("1") % 2 == 0)
    assert task.input_names == ("0", "1") and task.answer_names == ("no", "yes") and task.train_lengths == (1, 8)


def replaced(line, text):
    """An edit: this line, from 1, becomes the text; None: it is removed."""

    def edit(lines):
        lines[line - 1 : line] = [] if text is None else [text]

    return edit


LINES = ["", "ay bee", "sea"]
GOOD = json.dumps([continuations(["ay", "bee"][:n]) for n in range(3)])
BAD = {
    "label": ("labels.txt", replaced(2, "yes"), "labels.txt, line 2: got 'yes'; a label is 0 or 1"),
    "labels_short": ("labels.txt", replaced(3, None), "labels.txt, line 3: it has 2 lines, but main.tok has 3 lines"),
    "strings_short": ("main.tok", replaced(3, None), "labels.txt, line 3: it has 3 lines, but main.tok has 2 lines"),
    "no_strings": ("main.tok", lambda lines: lines.clear(), "main.tok is empty"),
    "next_short": ("next-symbols.jsonl", replaced(2, None), "jsonl, line 2: it has 1 lines, but labels.txt has 2 ones"),
    "json": ("next-symbols.jsonl", replaced(2, "[{]"), "next-symbols.jsonl, line 2: it is not valid JSON"),
    "no_list": (
        "next-symbols.jsonl",
        replaced(2, "3"),
        "next-symbols.jsonl, line 2: it has int; its string has 2 tokens",
    ),
    "ragged": ("next-symbols.jsonl", replaced(2, "[]"), "line 2: it has 0 objects; its string has 2 tokens, so 3 are"),
    "no_object": ("next-symbols.jsonl", replaced(1, '[{"s": "ay"}]'), 'line 1: got {"s": "ay"}; an object is {"s"'),
    "shifted": (
        "next-symbols.jsonl",
        replaced(2, GOOD.replace("ay", "sea")),
        "line 2: 'ay' follows in its string, but",
    ),
    "no_end": ("next-symbols.jsonl", replaced(1, '[{"s": "ay", "e": false}]'), "line 1: its string ends where the"),
    "latin": ("main.tok", replaced(2, "caf\udce9"), "main.tok, line 2: it is not UTF-8"),
}


@pytest.mark.parametrize(("name", "edit", "message"), BAD.values(), ids=BAD)
def test_a_bad_file_is_one_line(directory, name, edit, message):
    """It names the file and the line, before anything is trained."""
    folder = Path(directory) / SPLITS["test"]
    write(folder, [line.split() for line in LINES])
    lines = (folder / name).read_text().split("\n")[:-1]
    edit(lines)
    (folder / name).write_bytes("".join(f"{line}\n" for line in lines).encode("utf-8", "surrogateescape"))
    with pytest.raises(ValueError) as caught:
        _ = tasks.make("flare", directory=directory, answer="next_symbols").spec
    assert message in str(caught.value) and "\n" not in str(caught.value) and str(folder) in str(caught.value)


@pytest.mark.parametrize("name", ["main.tok", "labels.txt", "next-symbols.jsonl"])
def test_a_missing_file_is_one_line(directory, name):
    missing = Path(directory) / SPLITS["validation_long"] / name
    missing.unlink()
    with pytest.raises(ValueError, match=f"{name} cannot be read .No such file or directory.; expected a directory"):
        _ = tasks.make("flare", directory=directory, answer="next_symbols").spec
    if name == "next-symbols.jsonl":  # labels do not need it
        assert tasks.make("flare", directory=directory).spec.output_size == 2


def test_a_language_may_have_no_short_test(directory):
    """The published repeat-01 has none. A directory without its files is an error."""
    folder = Path(directory) / SPLITS["test_short"]
    (folder / "labels.txt").unlink()
    with pytest.raises(ValueError, match="labels.txt cannot be read"):
        _ = tasks.make("flare", directory=directory).spec
    shutil.rmtree(folder)
    task = tasks.make("flare", directory=directory, answer="next_symbols")
    assert set(task.splits) == set(SPLITS) - {"test_short"}
    assert [line.split(":")[0] for line in check_flare(Path(directory))] == list(task.splits)
    with pytest.raises(ValueError, match="'test_short' is not a split of Flare"):
        task.lengths_of("test_short")


def test_other_directories():
    for directory in ("nowhere", "", "nul\0"):
        with pytest.raises(ValueError, match="cannot be read"):
            _ = tasks.make("flare", directory=directory).spec


def test_a_language_without_a_string_to_continue(directory):
    write(Path(directory) / SPLITS["test"], [["sea"]])
    assert tasks.make("flare", directory=directory).spec.output_size == 2
    with pytest.raises(ValueError, match="the split 'test' of .* has no string of the language"):
        _ = tasks.make("flare", directory=directory, answer="next_symbols").spec


def test_a_file_may_hold_the_empty_string_alone(tmp_path):
    (tmp_path / "main.tok").write_text("\n")
    (tmp_path / "labels.txt").write_text("1\n")
    assert read_strings(tmp_path, following=False) == [String((), True)]
