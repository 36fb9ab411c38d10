"""bAbI's files: small ones are written in the published form, read back as examples, and damaged in every way."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import jax
import numpy as np
import pytest

from lenmem import Experiment, Training, models, tasks
from lenmem.data import babi, stories
from lenmem.tasks.questions import Babi
from lenmem.tasks.stories import Stories
from lenmem.training import train

NAMES = {1: "qa1_single-supporting-fact", 8: "qa8_lists-sets", 19: "qa19_path-finding"}


def files(folder: Path, names=NAMES, splits=("train", "valid", "test"), questions=12) -> list[tuple]:
    """Writes files of these tasks, with two questions in each story; returns (task, story, question, answer) of all."""
    rng, asked = random.Random(0), []
    folder.mkdir(exist_ok=True)
    for task, name in names.items():
        for split in splits:
            lines = []
            for _ in range(questions // 2):
                sentences = [f"Ann went to the {rng.choice(['hall', 'shed'])}." for _ in range(rng.randint(2, 9))]
                numbered, told = [], []
                for at, sentence in enumerate(sentences, 1):
                    numbered.append(sentence)
                    told.append(sentence)
                    if at in (2, len(sentences)) and not (at == 2 == len(sentences)):
                        answer = {8: "milk,apple", 19: "n,w"}.get(task, sentence.split()[-1][:-1])
                        support = "1 2" if task == 19 else str(len(numbered))
                        numbered.append(f"Where is Ann? \t{answer}\t{support}")
                        asked.append((task, " ".join(told), "Where is Ann?", answer))
                if "\t" not in numbered[-1]:
                    numbered.append("Where is Ann? \thall\t1")
                    asked.append((task, " ".join(told), "Where is Ann?", "hall"))
                lines += [f"{number} {line}\n" for number, line in enumerate(numbered, 1)]
            (folder / f"{name}_{split}.txt").write_text("".join(lines))
    return asked


def spaced(text: str) -> str:
    return text.lower().replace(".", " .").replace("?", " ?")


@pytest.fixture
def directory(tmp_path):
    return tmp_path / "en", files(tmp_path / "en")


def test_all_questions_of_all_splits(directory):
    folder, asked = directory
    found = babi.read_directory(folder, NAMES)
    assert [
        (one.task, " ".join(map(" ".join, one.story)), " ".join(one.question), ",".join(one.answer)) for one in found
    ] == [(task, spaced(story), spaced(question), answer) for task, story, question, answer in asked]


@pytest.mark.parametrize("name", babi.DIRECTORIES)
def test_names_of_the_published_directories(tmp_path, name):
    """With the name of the task, or (in the directories with a split `valid`) without it."""
    splits = babi.DIRECTORIES[name]
    names = {1: "qa1", 11: "qa11"} if "valid" in name else {1: NAMES[1], 11: "qa11_basic-coreference"}
    files(tmp_path / name, names, splits, 2)
    found = babi.files_of(tmp_path / name, 1)
    assert {split: path.name for split, path in found.items()} == {split: f"{names[1]}_{split}.txt" for split in splits}


def texts(task, split):
    """(input, answer) of all rows of a split, in words."""
    count = len(task.tables()[split])
    batch = jax.tree.map(np.asarray, jax.jit(task.source(split, count).batch)(jax.random.key(0), 0))
    for row in range(count):
        inputs, answer = batch.inputs[row][batch.input_mask[row]], batch.targets[row][batch.score_mask[row]]
        assert answer[-1] == task.spec.end_id and batch.target_mask[row].all()
        yield " ".join(task.input_names[i] for i in inputs), ",".join(task.answer_names[i] for i in answer[:-1])


@pytest.mark.parametrize("share", [0.8, 0.5])
def test_longer_stories_of_each_task_are_the_test(directory, share):
    folder, asked = directory
    task = Babi(directory=str(folder), tasks=tuple(NAMES), train_share=share, validation_share=0.2, batches="mixed")
    found = {split: list(texts(task, split)) for split in task.splits}
    everything = Counter(f"{spaced(story)} {spaced(question)}|{answer}" for _, story, question, answer in asked)
    parts = [found[split] for split in ("train", "validation", "test")]
    assert sum((Counter("|".join(pair) for pair in part) for part in parts), Counter()) == everything
    total = 0
    for number in NAMES:
        own = sorted((len(spaced(story).split()) for at, story, *_ in asked if at == number), reverse=True)
        test = [len(text.split()) - 4 for text, _ in found[f"task_{number}"]]
        assert sorted(test, reverse=True) == own[: len(test)]
        assert len(test) == len(own) - int(len(own) * share)
        total += len(test)
        assert test != sorted(test), "the first rows have all lengths"
    assert total == len(found["test"]) and len(parts[1]) == (len(asked) - total) // 5
    lengths = [len(text.split()) for text, _ in found["test"]]
    assert task.test_lengths == (min(lengths), max(lengths))


def test_the_longest_stories_have_the_most_words_and_not_the_most_sentences(tmp_path):
    wordy = "1 Ann and Bob and Eve went to the old mill by the river.\n2 Where is Ann? \tmill\t1\n"
    short = "1 Ann left.\n2 Bob left.\n3 Where is Ann? \thall\t1\n"
    for split in ("train", "test"):
        (tmp_path / f"qa1_{split}.txt").write_text((wordy + short) * 4)
    task = Babi(directory=str(tmp_path), tasks=(1,), train_share=0.5, validation_share=0.0)
    assert {answer for _, answer in texts(task, "test")} == {"mill"}


def test_stories_are_cut_to_their_last_sentences(directory):
    folder, asked = directory
    task = Babi(directory=str(folder), tasks=(1,), last_sentences=2, validation_share=0.0)
    wanted = {" ".join(spaced(story).split()[-12:]) + " where is ann ?" for at, story, *_ in asked if at == 1}
    assert {text for split in ("train", "test") for text, _ in texts(task, split)} == wanted


def test_lengths_of_validation_can_be_asked_for():
    task = Babi()
    shortest = min(task.row_lengths(task.tables()["validation"]))
    assert shortest < min(task.curve_lengths)
    task.check_length(int(shortest))
    with pytest.raises(ValueError, match="the shortest example of Babi has length"):
        task.check_length(1)


def test_sizes_do_not_depend_on_the_files(directory):
    folder, _ = directory
    one, other = Babi(directory=str(folder), tasks=(1,)), Babi()
    assert one.spec == other.spec and one.spec.shapes(30) == other.spec.shapes(30) == (30, 6)
    assert Babi(directory="nowhere").spec == other.spec  # so that a configuration can be read without them


@pytest.mark.parametrize(
    "contents, message",
    [
        (b"1 Ann went up.\n3 Where is Ann? \thall\t1\n", r"line 2: its number is 3; after 1 comes 2, or 1 in a new"),
        (b"1 Ann went up.\n2 Where is Ann? \thall\n", r"line 2: it has 2 fields; a question has three, with tabs"),
        (b"1 Ann went up.\n2 Where is Ann? \thall\t2\n", r"line 2: its support is '2'; expected numbers of sent"),
        (b"1 Ann went up.\n2 Where is Ann? \thall\tone\n", r"line 2: its support is 'one'"),
        (b"1 Ann went up.\n2 Where is Ann? \t,\t1\n", r"line 2: got the question .*with the answer ','; neither"),
        (b"1 Ann went up.\n\n", r"line 2: got ''; a line is a number, a blank, and a sentence"),
        (b"Ann went up.\n", r"line 1: got 'Ann went up.'; a line is a number"),
        (b"1 Where is Ann? \thall\t1\n", r"line 1: a question comes before the first sentence"),
        (b"1 Ann went up.\n2 Where is Ann", r"line 2: the file ends in a story, without a question; it is cut off"),
        (b"1 Ann w\xe4nt up.\n", r"line 1: it is not UTF-8"),
        (b"", r"line 0: the file ends in a story, without a question; it is cut off or empty"),
    ],
)
def test_a_wrong_file_is_one_line(tmp_path, contents, message):
    files(tmp_path, {1: "qa1"})
    (tmp_path / "qa1_test.txt").write_bytes(contents)
    with pytest.raises(ValueError, match=rf"qa1_test\.txt, {message}") as error:
        Babi(directory=str(tmp_path), tasks=(1,)).tables()
    assert "\n" not in str(error.value)


def test_missing_and_doubled_files(tmp_path):
    with pytest.raises(ValueError, match=r"nowhere cannot be read \(No such file .*expected a directory of bAbI such"):
        Babi(directory=str(tmp_path / "nowhere")).tables()
    with pytest.raises(ValueError, match=r"has no file qa1_\*_train\.txt\. It is empty\."):
        Babi(directory=str(tmp_path)).tables()
    files(tmp_path, {1: "qa1"})
    with pytest.raises(ValueError, match=r"has no file qa2_\*_train\.txt\. Did you mean 'qa1_train\.txt'"):
        Babi(directory=str(tmp_path)).tables()
    files(tmp_path, {1: NAMES[1]})
    with pytest.raises(ValueError, match=r"has qa1_single-supporting-fact_train\.txt and qa1_train\.txt; expected one"):
        Babi(directory=str(tmp_path)).tables()


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"vocabulary_size": 6}, "has 14 different words; vocabulary_size is 6"),
        ({"answer_words": 1}, "the answer 'milk,apple' of task 8 has 2 words; answer_words is 1"),
        ({"tasks": (1, 1)}, r"tasks is \(1, 1\); give different numbers"),
        ({"tasks": ()}, r"tasks is \(\); give different numbers"),
        ({"tasks": (21,)}, "tasks is .*from 1 to 20"),
        ({"train_share": 0.0}, "train_share is 0.0; it must be above 0"),
        ({"train_share": 0.01}, "questions of task 1, too few for a train_share of 0.01"),
    ],
)
def test_fields_that_do_not_fit(directory, fields, message):
    with pytest.raises(ValueError, match=message):
        Babi(**({"directory": str(directory[0]), "tasks": tuple(NAMES)} | fields)).tables()


def test_the_example_has_nine_tasks():
    task = tasks.make("babi")
    assert {split for split in task.splits if split.startswith("task_")} == {f"task_{n}" for n in stories.BABI.values()}
    assert task.spec.vocabulary == len(set(task.input_names)) == 200
    with pytest.raises(ValueError, match="the example has no task 4, only 1, 2, 3, 5"):
        tasks.make("babi", tasks=(4,)).tables()


SMALL = {"examples": 300, "held_out_examples": 90}


def test_drawn_stories():
    task = Stories(**SMALL, train_lengths=(4, 6), test_lengths=(7, 20), batches="mixed")
    seen = Counter()
    for split in ("train", "validation", "test"):
        for text, answer in texts(task, split):
            sentences = text.count(" .")
            assert task.lengths_of(split)[0] <= sentences <= task.lengths_of(split)[1]
            assert text.endswith(" ?") and answer
            seen[text] += 1
    assert len(seen) == 300 + 2 * 90 and set(seen.values()) == {1}
    assert [len(task.tables()[kind]) for kind in task.kinds] == [10] * 9
    for length in (4, 9, 20):
        example = task.sample(jax.random.key(0), length, 20)
        (stop,) = [number for number, name in enumerate(task.input_names) if name == "."]
        assert 0 <= length - int((example.inputs[example.input_mask] == stop).sum()) <= 1


def test_no_story_is_in_two_splits(tmp_path, monkeypatch):
    """There are 144 different stories of one sentence about one fact."""
    monkeypatch.setenv("LENMEM_CACHE", str(tmp_path))
    few = {"kinds": ("one_fact",), "train_lengths": (1, 1), "test_lengths": (1, 2)}
    task = Stories(**few, examples=60, held_out_examples=40, batches="mixed")
    found = [set(texts(task, split)) for split in ("train", "validation", "test")]
    assert sum(map(len, found)) == len(set.union(*found)) == 140


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"kinds": ()}, "give different kinds, at least one of one_fact"),
        ({"kinds": ("one_facts",)}, "kinds is"),
        ({"train_lengths": (3, 5)}, r"train_lengths is \(3, 5\); stories of these kinds have 4 to 48 sentences"),
        ({"test_lengths": (13, 49)}, r"test_lengths is \(13, 49\); stories"),
        ({"kinds": ("one_fact",), "train_lengths": (1, 1)}, "there are not 300 different stories for 'train'"),
    ],
)
def test_stories_that_cannot_be_drawn(fields, message):
    with pytest.raises(ValueError, match=message):
        Stories(**(SMALL | fields)).tables()


@pytest.mark.slow
def test_a_training_writes_accuracy_and_loss_by_epoch(directory):
    """As the configuration of the paper does: the test is scored after each pass over the training questions."""
    folder, _ = directory
    task = Babi(directory=str(folder), tasks=tuple(NAMES), validation_share=0.0)
    sizes = {"hidden_size": 16, "heads": 2, "feedforward_size": 16, "encoder_layers": 1, "decoder_layers": 2}
    options = {"validation_split": "test", "validate_every": 2, "selection_metric": "loss", "log_every": 2}
    training = Training(steps=4, batch_size=8, seeds=2, **options)
    result = train(Experiment(task, models.make("transformer_panm", **sizes), training))
    for entry in result.history:
        assert {"test/loss", "test/exact_match"} <= entry.keys() and len(entry["test/loss"]) == 2
    assert result.alive.all()
