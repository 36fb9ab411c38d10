"""SCAN: counts, known pairs, an interpreter that works on strings, splits, forms and readers."""

from __future__ import annotations

import collections
import functools
import re
import sys
import types
from pathlib import Path

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lenmem import tasks
from lenmem.data.scan import read_file, read_tfds
from lenmem.tasks.base import draw
from lenmem.tasks.scan import ACTIONS, END, LINE_END, WORDS, Scan, check_pairs, grammar
from tests.learning import briefly

FIXTURE = Path(__file__).parents[1] / "data" / "fixtures" / "scan_lines.txt"
CUTOFFS = {  # pairs up to the cut-off, trained, held out; longer pairs
    22: (16990, 15292, 1698, 3920),
    24: (17326, 15594, 1732, 3584),
    25: (17774, 15997, 1777, 3136),
    26: (18286, 16458, 1828, 2624),
    27: (18734, 16861, 1873, 2176),
    28: (19182, 17264, 1918, 1728),
    30: (19758, 17783, 1975, 1152),
    32: (20206, 18186, 2020, 704),
    33: (20462, 18416, 2046, 448),
    36: (20526, 18474, 2052, 384),
    40: (20782, 18704, 2078, 128),
}
LINE = (*WORDS, *ACTIONS, "IN:", "OUT:", "_", "<eos>")


def interpret(command: str) -> str:
    """The actions of a command, by substitution in its text, as in Lake & Baroni's Figure 6."""
    if " and " in command:
        left, right = command.split(" and ")
        return f"{interpret(left)} {interpret(right)}"
    if " after " in command:
        left, right = command.split(" after ")
        return f"{interpret(right)} {interpret(left)}"
    if found := re.fullmatch(r"(.*) (twice|thrice)", command):
        return " ".join([interpret(found[1])] * {"twice": 2, "thrice": 3}[found[2]])
    words = command.split()
    act = {"turn": ""}.get(words[0], f"I_{words[0].upper()}")
    if len(words) == 1:
        return act
    turn = f"I_TURN_{words[-1].upper()}"
    shape = {"opposite": f"{turn} {turn} {act}", "around": f"{turn} {act} " * 4}
    return " ".join((shape[words[1]] if len(words) == 3 else f"{turn} {act}").split())


@functools.cache
def pairs() -> dict[str, str]:
    return {" ".join(words): " ".join(actions) for words, actions in grammar()}


@functools.cache
def scan(**fields) -> Scan:
    task = tasks.make("scan", **fields)
    assert isinstance(task, Scan)
    return task


@functools.cache
def batch_of(split: str, size: int, **fields):
    return jax.tree.map(np.asarray, briefly(scan(**fields).source(split, size).batch)(jax.random.key(0), 0))


def decode(batch) -> list[tuple[str, str]]:
    """(command, answer up to its end symbol) of the rows of a batch."""
    return [
        (
            " ".join(WORDS[word] for word in inputs[read]),
            " ".join((*ACTIONS, "$")[action] for action in targets[scored]).removesuffix(" $"),
        )
        for inputs, read, targets, _, scored in zip(*batch, strict=True)
    ]


def test_every_pair_of_the_grammar():
    assert len(grammar()) == len(pairs()) == 20_910
    assert {word for command in pairs() for word in command.split()} == set(WORDS)
    assert {action for answer in pairs().values() for action in answer.split()} == set(ACTIONS)
    assert max(len(command.split()) for command in pairs()) == 9
    assert max(len(answer.split()) for answer in pairs().values()) == 48
    for command, answer in pairs().items():
        assert interpret(command) == answer, command


def test_known_pairs():
    known = dict(read_file(FIXTURE))
    assert len(known) == 7
    for words, actions in known.items():
        assert pairs()[" ".join(words)] == " ".join(actions)


@pytest.mark.parametrize("cutoff", CUTOFFS)
def test_counts_of_the_cut_offs(cutoff):
    pool, train, held, longer = CUTOFFS[cutoff]
    tables = scan(max_actions=cutoff).tables()
    assert [len(tables[split]) for split in ("train", "validation", "test")] == [train, held, longer]
    assert train + held == pool and pool + longer == 20_910
    assert tables["train"].answer_lengths.max() == tables["validation"].answer_lengths.max() == cutoff
    assert tables["test"].answer_lengths.min() > cutoff
    rows = [{row.tobytes() for row in rows.inputs} for rows in tables.values()]
    assert sum(map(len, rows)) == len(set.union(*rows)) == 20_910, "splits share no command, and repeat none"


def test_validation_may_be_left_out():
    task = scan(validation_share=0.0)
    assert {split: len(rows) for split, rows in task.tables().items()} == {
        "train": 16990,
        "validation": 0,
        "test": 3920,
    }
    with pytest.raises(ValueError, match="'validation' .* no examples"):
        task.source("validation", 4)


def test_batches_are_right_and_masks_honest():
    for split, fields in (("train", {}), ("validation", {}), ("test", {}), ("train", {"length_given": True})):
        batch = batch_of(split, 64, **fields)
        assert batch.inputs.shape == (64, 9)
        assert batch.targets.shape == (64, 23 if fields else 49)
        for command, answer in decode(batch):
            assert pairs()[command] == answer
        ends = batch.score_mask.sum(-1) - 1
        assert (batch.targets[np.arange(64), ends] == END).all()
        np.testing.assert_array_equal(batch.target_mask, batch.score_mask if fields else np.ones((64, 49), bool))
        assert not batch.inputs[~batch.input_mask].any() and not batch.targets[~batch.score_mask].any()
        low, high = scan(**fields).lengths_of(split)
        assert low <= ends.min() and ends.max() <= high


def test_a_pass_takes_every_row_once_in_a_new_order():
    task = scan(max_actions=2, validation_share=0.2)
    size = len(task.tables()["train"])
    program = briefly(lambda seed, step: task.source("train", 4).batch(jax.random.key(seed), step))
    whole = size // 4
    orders = [
        [
            command
            for step in range(first, first + whole)
            for command, _ in decode(jax.tree.map(np.asarray, program(seed, step)))
        ]
        for seed, first in ((0, 0), (0, whole), (1, 0), (0, 0))
    ]
    assert all(len(set(order)) == len(order) == whole * 4 for order in orders)
    assert orders[0] == orders[3]
    assert orders[0] != orders[1] and orders[0] != orders[2]


def test_the_test_split_is_gone_through_in_order():
    task = scan(max_actions=40)
    program = briefly(functools.partial(task.source("test", 48).batch, jax.random.key(0)))
    seen = [command for step in range(3) for command, _ in decode(jax.tree.map(np.asarray, program(step)))]
    assert len(set(seen[:128])) == 128 and seen[128:] == seen[:16]


def test_samples_by_length_are_held_out():
    task = scan()
    assert task.curve_lengths[-3:] == (36, 40, 48) and 23 not in task.curve_lengths
    lengths = np.repeat([*task.curve_lengths, 23, 47], 8)
    program = briefly(lambda key: draw(task, key, jnp.asarray(lengths), 48))
    batch = jax.tree.map(np.asarray, program(jax.random.key(0)))
    train = {row.tobytes() for row in task.tables()["train"].inputs}
    held = set(task.tables()["validation"].answer_lengths)
    for length, (command, answer), row in zip(lengths, decode(batch), batch.inputs, strict=True):
        assert pairs()[command] == answer
        assert len(answer.split()) == {23: 22, 47: 40}.get(length, length)
        assert (row.astype(np.uint8).tobytes() in train) == (length < 23 and length not in held)
    both = briefly(lambda key, length: [task.sample(key, length, capacity) for capacity in (22, 48)])
    chex.assert_trees_all_equal(*both(jax.random.key(1), 7))


def test_whole_line_as_published():
    for split, size in (("train", 34), ("test", 60)):
        batch = batch_of(split, 32, whole_line=True)
        task = scan(whole_line=True)
        assert task.spec.vocabulary == task.spec.output_size == 23 and task.spec.alignment == "aligned"
        assert batch.inputs.shape == batch.targets.shape == (32, size)
        assert batch.input_mask.all() and batch.score_mask.all()
        for inputs, targets in zip(batch.inputs, batch.targets, strict=True):
            read, wanted = ([LINE[token] for token in tokens] for tokens in (inputs, targets))
            command = [word for word in read if word != "_"]
            answer = pairs()[" ".join(command[1:])].split()
            line = [*command, "OUT:", *answer, "<eos>"]
            assert read == command + ["_"] * (size - len(command))
            assert wanted == ["_"] * len(command) + line[len(command) :] + ["_"] * (size - len(line))
    long = jax.tree.map(np.asarray, briefly(lambda n: draw(task, jax.random.key(0), n, 48))(jnp.array([22, 24])))
    assert long.score_mask.sum(-1).tolist() == [34, 60]
    blank = jax.nn.one_hot(jnp.full(batch.targets.shape, LINE.index("_")), 23)
    metrics = task.metrics(blank, batch)
    assert (np.asarray(metrics["token_accuracy"]) > 0).all() and not np.asarray(metrics["answer_token_accuracy"]).any()
    without_out = jnp.where(batch.targets == LINE.index("OUT:"), 0, batch.targets)
    metrics = task.metrics(jax.nn.one_hot(without_out, LINE_END + 1), batch)
    assert np.asarray(metrics["answer_exact_match"]).all() and not np.asarray(metrics["exact_match"]).any()


@pytest.mark.parametrize("fields", [{}, {"whole_line": True}])
def test_chance_is_the_best_constant_answer(fields):
    batch = batch_of("train", 4000, **fields)
    counts = [
        ((batch.targets == answer) & batch.score_mask).sum(-1) for answer in range(scan(**fields).spec.output_size)
    ]
    shares = (np.array(counts) / batch.score_mask.sum(-1)).mean(-1)
    assert scan(**fields).spec.chance == pytest.approx(shares.max(), abs=0.01)


def test_padding_reaches_neither_loss_nor_metrics():
    batch, task = batch_of("train", 64), scan()
    outputs = np.random.default_rng(0).normal(size=(*batch.targets.shape, 7)).astype(np.float32)
    dirty = batch._replace(
        targets=np.where(batch.score_mask, batch.targets, 5), inputs=np.where(batch.input_mask, batch.inputs, -1)
    )
    noise = np.where(batch.score_mask[..., None], outputs, np.nan)
    assert float(task.loss(noise, dirty)) == float(task.loss(outputs, batch))
    for left, right in zip(task.metrics(noise, dirty).values(), task.metrics(outputs, batch).values(), strict=True):
        np.testing.assert_array_equal(left, right)


def write_lines(path: Path, lines: list[tuple[str, str]]) -> str:
    path.write_text("".join(f"IN: {command} OUT: {answer}\n" for command, answer in lines))
    return str(path)


def test_the_official_file(tmp_path):
    """Another order of the same pairs is accepted, and changes the held-out pairs."""
    lines = list(pairs().items())[::-1]
    path = write_lines(tmp_path / "tasks.txt", lines)
    assert [(" ".join(words), " ".join(actions)) for words, actions in read_file(path)] == lines
    task = Scan(origin=path)
    tables, own = task.tables(), scan().tables()
    assert [len(rows) for rows in tables.values()] == [len(rows) for rows in own.values()]
    chosen = np.random.RandomState(1234).choice(16990, 1698, replace=False)  # Csordás et al. 2021
    pool = [command for command, answer in lines if len(answer.split()) <= 22]
    got = [
        " ".join(WORDS[w] for w in row[:n])
        for row, n in zip(tables["validation"].inputs, tables["validation"].input_lengths, strict=True)
    ]
    assert got == [pool[i] for i in chosen]
    assert not np.array_equal(tables["validation"].inputs, own["validation"].inputs)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda lines: lines[1:], "has 20909 pairs, 20909 of them different; SCAN has 20910"),
        (lambda lines: [*lines, lines[0]], "has 20911 pairs, 20910 of them different"),
        (lambda lines: [("walk", "I_RUN"), *lines[1:]], "pair 1: 'walk' gives 'I_RUN'; the grammar gives 'I_WALK'"),
        (lambda lines: [*lines, ("fly", "I_FLY")], "pair 20911: 'fly' gives 'I_FLY'; the grammar has no such command"),
    ],
)
def test_files_that_differ_from_the_grammar(change, message):
    lines = [(tuple(command.split()), tuple(answer.split())) for command, answer in change(list(pairs().items()))]
    with pytest.raises(ValueError, match=message):
        check_pairs(lines, "tasks.txt")


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(ValueError, match=r"no_such\.txt cannot be read .* expected SCAN's tasks.txt"):
        Scan(origin=str(tmp_path / "no_such.txt")).source("train", 4)
    (tmp_path / "bad.txt").write_text("IN: walk OUT: I_WALK\nwalk\tI_WALK\n")
    with pytest.raises(ValueError, match=r"bad\.txt, line 2: got 'walk\\tI_WALK'; a line is `IN:"):
        read_file(tmp_path / "bad.txt")


def test_tfds_route(monkeypatch):
    """With a stand-in for TFDS: its two splits together are SCAN."""
    lines = list(pairs().items())
    parts = {
        split: [
            {"commands": command.encode(), "actions": answer.encode()}
            for command, answer in lines
            if (len(answer.split()) <= 22) == (split == "train")
        ]
        for split in ("train", "test")
    }
    asked = collections.Counter()

    def data_source(name, *, split):
        asked[name] += 1
        return parts[split]

    monkeypatch.setitem(sys.modules, "tensorflow_datasets", types.SimpleNamespace(data_source=data_source))
    assert {len(rows) for rows in Scan(origin="tfds").tables().values()} == {15292, 1698, 3920}
    assert asked == {"scan/length": 2}
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    with pytest.raises(ValueError, match=r"reading scan/length with TFDS needs: pip install 'lenmem\[data\]'"):
        read_tfds()


def test_impossible_fields():
    for fields, message in (
        ({"max_actions": 48}, "max_actions is 48"),
        ({"validation_share": 1.0}, "validation_share is 1.0"),
    ):
        with pytest.raises(ValueError, match=message):
            tasks.make("scan", **fields)
    with pytest.raises(ValueError, match="fewer than a batch of 20000"):
        scan().source("train", 20_000)
    with pytest.raises(ValueError, match="'od_easy' is not a split of Scan"):
        scan().source("od_easy", 4)
