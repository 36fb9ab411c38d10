"""Long Range Arena: ListOps against a parser, text and images from files."""

from __future__ import annotations

import itertools
import statistics
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lenmem import tasks
from lenmem.data import cifar10, digits, listops
from lenmem.data.rows import Rows, take
from lenmem.tasks.base import draw
from lenmem.tasks.rows import RowTask, shuffled
from tests.learning import briefly

IMDB = str(Path(__file__).parents[1] / "data" / "fixtures" / "aclImdb")
TOKENS = (*"0123456789", "[MIN", "[MAX", "[MED", "[SM", "]")
SMALL = {"train_size": 150, "validation_size": 40, "test_size": 60, "min_length": 20, "max_length": 60, "max_depth": 4}


@pytest.fixture(autouse=True)
def directory(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("LENMEM_CACHE", str(tmp_path_factory.getbasetemp() / "lra"))


def make(name, **fields) -> RowTask:
    task = tasks.make(name, **fields)
    assert isinstance(task, RowTask)
    return task


def parse(words: list[str]) -> tuple[int, int, list[int]]:
    """(value, depth, arguments of each operator) of an expression; consumes it from the list."""
    word = words.pop(0)
    if word.isdigit():
        return int(word), 1, []
    values, depths, counts = [], [], []
    while words[0] != "]":
        value, depth, inner = parse(words)
        values.append(value)
        depths.append(depth)
        counts += inner
    words.pop(0)
    result = {
        "[MIN": min,
        "[MAX": max,
        "[MED": lambda values: int(statistics.median(values)),
        "[SM": lambda values: sum(values) % 10,
    }[word](values)
    return result, 1 + max(depths), [len(values), *counts]


def words_of(tokens) -> list[str]:
    return [TOKENS[token] for token in tokens]


def test_expressions_against_a_parser():
    grammar = listops.Grammar(max_depth=5, max_arguments=6)
    tokens, lengths, values = listops.expressions(np.random.default_rng(1), grammar, 3000, 5, 80)
    assert tokens.dtype == values.dtype == np.uint8
    depths, counts, operators = set(), [], []
    for tree, value in zip(np.split(tokens, np.cumsum(lengths)[:-1]), values, strict=True):
        words = words_of(tree)
        assert 5 <= len(words) <= 80
        operators += [word for word in words if word.startswith("[")]
        result, depth, arguments = parse(words)
        assert not words, "one expression and nothing after it"
        assert result == value
        depths.add(depth)
        counts += arguments
    assert max(depths) == 5
    assert (min(counts), max(counts)) == (2, 6)
    shares = [operators.count(word) / len(operators) for word in TOKENS[10:14]]
    np.testing.assert_allclose(shares, 0.25, atol=0.02)


def test_known_expression():
    assert parse(["[MAX", "2", "9", "[MIN", "4", "7", "]", "0", "]"])[0] == 9
    assert parse(["[SM", "5", "6", "[MED", "1", "4", "8", "9", "]", "]"])[0] == 7
    levels = [
        listops._Level(np.array([13], np.uint8), np.array([0]), np.array([3])),
        listops._Level(np.array([5, 6, 12], np.uint8), np.array([0]), np.array([4])),
        listops._Level(np.array([9, 1, 8, 4], np.uint8), np.array([], int), np.array([], int)),
    ]
    listops._evaluate(levels)
    assert levels[0].value.tolist() == [7] and levels[0].size.tolist() == [10]
    tokens = listops._write(levels, np.array([0]))
    assert " ".join(words_of(tokens)) == "[SM 5 6 [MED 9 1 8 4 ] ]"


def test_shares_of_a_free_tree():
    """Without a filter on the length: an argument is an operator one time in four, arguments are uniform."""
    levels = listops._grow(np.random.default_rng(0), listops.Grammar(max_depth=3), 8000)
    assert (levels[0].kind >= 10).all() and (levels[2].kind < 10).all()
    assert (levels[1].kind >= 10).mean() == pytest.approx(0.25, abs=0.01)
    np.testing.assert_allclose(np.bincount(levels[0].arguments)[2:] / 8000, 1 / 9, atol=0.015)


def test_listops_sets():
    task = make("lra_listops", **SMALL)
    tables = task.tables()
    assert [len(rows) for rows in tables.values()] == [150, 40, 60]
    trees = [
        row[:n].tobytes() for rows in tables.values() for row, n in zip(rows.inputs, rows.input_lengths, strict=True)
    ]
    assert len(set(trees)) == 250, "no tree twice, in any split"
    for rows in tables.values():
        for row, n, answer in zip(rows.inputs, rows.input_lengths, rows.answers, strict=True):
            words = words_of(row[:n])
            assert 20 < n < 60
            assert parse(words)[0] == answer[0] and not words
    again = make("lra_listops", **SMALL).tables()
    np.testing.assert_array_equal(again["test"].inputs, tables["test"].inputs)
    other = make("lra_listops", **SMALL, data_seed=1).tables()
    assert not {row.tobytes() for row in other["test"].inputs} & {row.tobytes() for row in tables["train"].inputs}
    cut = make("lra_listops", **SMALL, cut_at=30).tables()["train"]
    np.testing.assert_array_equal(cut.inputs, tables["train"].inputs[:, :30])
    assert cut.input_lengths.max() == 30


def written(directory: Path, counts: dict[str, int]) -> None:
    """Trees of 21 to 59 tokens as the benchmark's files have them."""
    grammar = listops.Grammar(max_depth=4)
    tokens, lengths, values = listops.expressions(np.random.default_rng(2), grammar, 4000, 21, 59)
    trees = zip(np.split(tokens, np.cumsum(lengths)[:-1]), values, strict=True)
    for split, count in counts.items():
        lines = [f"( {' '.join(words_of(tree))} )\t{value}" for tree, value in itertools.islice(trees, count)]
        (directory / listops.FILES[split]).write_text("\r\n".join(["Source\tTarget", *lines, ""]), newline="")


def test_listops_of_the_benchmark(tmp_path):
    """Values are those of a parser; a tree outside the lengths is named by its line."""
    written(tmp_path, {"train": 30, "validation": 4, "test": 10})
    task = make("lra_listops", **SMALL, origin=str(tmp_path), cut_at=40)
    tables = task.tables()
    assert {split: len(rows) for split, rows in tables.items()} == {"train": 30, "validation": 4, "test": 10}
    whole = make("lra_listops", **SMALL, origin=str(tmp_path)).tables()["test"]
    for row, n, answer in zip(*whole.arrays[:3], strict=True):
        assert parse(words_of(row[:n]))[0] == answer[0]
    np.testing.assert_array_equal(tables["test"].inputs, whole.inputs[:, :40])
    with pytest.raises(
        ValueError, match=r"basic_train\.tsv, line \d+: \d+ tokens; .* more than min_length 50 and fewer"
    ):
        make("lra_listops", **SMALL | {"min_length": 50}, origin=str(tmp_path)).tables()


def test_listops_batches():
    task = make("lra_listops", **SMALL)
    spec = task.spec
    assert (spec.vocabulary, spec.output_size, task.lengths_of("train")) == (15, 10, (21, 59))
    rows = task.tables()["train"]
    batch = jax.tree.map(np.asarray, briefly(task.source("train", 32).batch)(jax.random.key(0), 1))
    assert batch.inputs.shape == (32, 59) and batch.targets.shape == (32, 1)
    known = {
        row[:n].tobytes(): answer[0]
        for row, n, answer in zip(rows.inputs, rows.input_lengths, rows.answers, strict=True)
    }
    for inputs, mask, target in zip(batch.inputs, batch.input_mask, batch.targets, strict=True):
        assert known[inputs[mask].astype(np.uint8).tobytes()] == target[0]
        assert not inputs[~mask].any()
    assert batch.score_mask.all() and batch.target_mask.all()
    outputs = np.random.default_rng(0).normal(size=(32, 1, 10)).astype(np.float32)
    dirty = batch._replace(inputs=np.where(batch.input_mask, batch.inputs, 99))
    assert float(task.loss(outputs, dirty)) == float(task.loss(outputs, batch))


def test_listops_by_length():
    task = make("lra_listops", **SMALL)
    assert task.curve_lengths == (59,), "bins of 100 tokens"
    assert make("lra_listops").curve_lengths == (*range(600, 2000, 100), 1999)
    rows = task.tables()["test"]
    test = {row[:n].tobytes() for row, n in zip(rows.inputs, rows.input_lengths, strict=True)}
    both = briefly(lambda key, length: [draw(task, key, length, c) for c in (59, 80)])
    tight, wide = jax.tree.map(np.asarray, both(jax.random.key(0), jnp.full(64, 40)))
    np.testing.assert_array_equal(wide.inputs[:, :59], tight.inputs)
    assert not wide.inputs[:, 59:].any()
    drawn = {row[mask].astype(np.uint8).tobytes() for row, mask in zip(tight.inputs, tight.input_mask, strict=True)}
    assert drawn <= test and len(drawn) > 10
    assert tight.input_mask.sum(-1).max() <= 40


def test_specs_need_no_data():
    for name, vocabulary, classes, lengths in (
        ("lra_listops", 15, 10, (501, 1999)),
        ("lra_text", 256, 2, (1, 1000)),
        ("lra_image", 256, 10, (1024, 1024)),
        ("lra_digits", 17, 10, (144, 1024)),
    ):
        task = make(name)
        assert (task.spec.vocabulary, task.spec.output_size, task.test_lengths) == (vocabulary, classes, lengths)
        assert task.shapes(50) == (50, 1)
        assert max(task.curve_lengths) == lengths[1]
        assert hash(task) == hash(make(name)) and task == make(name)


def test_text():
    task = make("lra_text", origin=IMDB, max_length=20, validation_share=0.25)
    tables = task.tables()
    assert {split: len(rows) for split, rows in tables.items()} == {"train": 3, "validation": 1, "test": 2}
    texts = {
        row[:n].tobytes(): answer[0]
        for rows in tables.values()
        for row, n, answer in zip(rows.inputs, rows.input_lengths, rows.answers, strict=True)
    }
    assert texts == {
        b"A dull film.\n": 0,
        b"Never again.\n": 0,
        "Très bien!\n".encode(): 1,
        b"Go and see it.\n": 1,
        b"Poor.\n": 0,
        b"A long, long review ": 1,
    }
    batch = jax.tree.map(np.asarray, briefly(task.source("test", 2).batch)(jax.random.key(0), 0))
    got = {bytes(row[mask].tolist()) for row, mask in zip(batch.inputs, batch.input_mask, strict=True)}
    assert got == {b"Poor.\n", b"A long, long review "}
    published = make("lra_text", origin=IMDB, validation_share=0.0).tables()
    np.testing.assert_array_equal(published["validation"].inputs, published["test"].inputs)
    assert len(published["train"]) == 4


def test_images(tmp_path):
    rng = np.random.default_rng(0)
    for name in sum(cifar10.FILES.values(), ()):
        records = rng.integers(0, 256, (4, 3073), np.uint8)
        records[:, 0] %= 10
        records.tofile(tmp_path / name)
    task = make("lra_image", origin=str(tmp_path))
    assert [len(rows) for rows in task.tables().values()] == [18, 2, 4]
    batch = jax.tree.map(np.asarray, briefly(task.source("test", 4).batch)(jax.random.key(0), 0))
    images, labels = cifar10.read_directory(str(tmp_path), "test")
    expected = {image.tobytes(): label for image, label in zip(cifar10.grey(images), labels, strict=True)}
    for pixels, label in zip(batch.inputs, batch.targets, strict=True):
        assert expected[pixels.astype(np.uint8).tobytes()] == label[0]
    assert batch.input_mask.all() and batch.inputs.shape == (4, 1024)


def test_digits_are_held_out_and_enlarged():
    """Every picture is in one split; enlarged ones repeat pixels, so every k-th row and column is the picture."""
    pictures, labels = digits.read()
    assert (pictures.shape, int(pictures.max())) == ((digits.PICTURES, 8, 8), digits.INKS - 1)
    task = make("lra_digits", sides=(12, 16, 24))
    tables = task.tables()
    assert {split: len(rows) for split, rows in tables.items()} == {
        "train": 1257,
        "validation": 180,
        "same_size": 360,
        "test": 1080,
    }
    seen = np.concatenate([tables[split].inputs for split in ("train", "validation", "same_size")])
    np.testing.assert_array_equal(np.unique(seen, axis=0), np.unique(pictures.reshape(-1, 64), axis=0))
    known = {row.tobytes(): label for row, label in zip(pictures.reshape(-1, 64), labels, strict=True)}
    small = {row.tobytes() for row in tables["same_size"].inputs}
    for split, factor in (("train", 1), ("test", 2), ("test", 3)):
        rows, side = tables[split], 8 * factor
        for row, answer in zip(*(a[rows.input_lengths == side**2] for a in (rows.inputs, rows.answers)), strict=True):
            grid = row[: side**2].reshape(side, side)
            every = grid[::factor, ::factor]
            np.testing.assert_array_equal(grid, np.kron(every, np.ones((factor, factor), np.uint8)))
            assert (every.tobytes() in small) == (split == "test")
            assert known[every.tobytes()] == answer[0]
    first = [0, 2, 3, 5, 6, 8, 9, 11]  # of 12 rows, those with the first copy of each of 8
    rows = tables["test"]
    for row, answer in zip(*(a[rows.input_lengths == 144] for a in (rows.inputs, rows.answers)), strict=True):
        assert known[row[:144].reshape(12, 12)[np.ix_(first, first)].tobytes()] == answer[0]


def test_digits_by_length():
    """A curve draws a size by its number of pixels; between two, the smaller one."""
    task = make("lra_digits", sides=(12, 16))
    assert task.curve_lengths == (64, 144, 256)
    assert task.splits == {"train": (64, 64), "validation": (64, 64), "test": (144, 256), "same_size": (64, 64)}
    batch = briefly(lambda key: draw(task, key, jnp.array([64, 144, 200, 256]), 256))(jax.random.key(0))
    np.testing.assert_array_equal(batch.input_mask.sum(-1), [64, 144, 144, 256])
    assert not np.any(np.where(batch.input_mask, 0, batch.inputs))


def test_digits_without_scikit_learn(monkeypatch):
    """One line that says what to install."""
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(ValueError, match=r"^the digits are in scikit-learn: pip install 'lenmem\[plot\]'$"):
        make("lra_digits").tables()


def test_missing_files():
    with pytest.raises(ValueError, match="aclImdb directory"):
        make("lra_text", origin="/nowhere").source("train", 4)
    with pytest.raises(ValueError, match="cifar-10-batches-bin"):
        make("lra_image", origin="/nowhere").sample(jax.random.key(0), 1024, 1024)


@pytest.mark.parametrize(
    ("name", "file", "wanted"),
    [("lra_listops", "basic_train.tsv", "listops-1000"), ("lra_image", "data_batch_1.bin", "cifar-10-batches-bin")],
)
def test_an_origin_of_another_kind(tmp_path, name, file, wanted):
    (tmp_path / "a file").write_text("")
    (tmp_path / "directory" / file).mkdir(parents=True)
    for origin, why in (("a file", "Not a directory"), ("directory", "Is a directory"), ("nowhere", "No such file")):
        with pytest.raises(ValueError, match=rf"{file} cannot be read \({why}.*; expected the .*{wanted} dir"):
            make(name, origin=str(tmp_path / origin)).source("train", 4)


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("lra_text", {"validation_seed": 2**32}, "validation_seed is 4294967296; .* from 0 to 4294967295"),
        ("pairs", {"data_seed": 2**32}, "data_seed is 4294967296; .* from 0 to 4294967295"),
        ("lra_listops", {"min_length": 90, "max_length": 91}, "no tree has more than 90 and fewer than 91"),
        ("lra_listops", {"max_depth": 1}, "max_depth is 1; it must be an integer, at least 2"),
        ("lra_listops", {"test_size": 0}, "test_size is 0; it must be an integer, at least 1"),
        ("lra_text", {"validation_share": 1}, "validation_share is 1"),
        ("lra_digits", {"sides": (16, 12)}, r"sides is \(16, 12\); they must be ascending, each more than 8"),
        ("lra_digits", {"sides": (8, 12)}, r"sides is \(8, 12\)"),
        ("lra_digits", {"sides": ()}, r"sides is \(\)"),
        (
            "lra_digits",
            {"test_size": 1700, "validation_size": 97},
            "together they must be fewer than the 1797 pictures",
        ),
    ],
)
def test_impossible_fields(name, fields, message):
    with pytest.raises(ValueError, match=message):
        make(name, **fields)


def test_trees_that_cannot_be_found():
    task = make("lra_listops", train_size=10, min_length=500, max_length=600, max_depth=2)
    with pytest.raises(ValueError, match="4010 different trees .* too many to be found; got 0"):
        task.tables()


@pytest.mark.parametrize("size", [1, 2, 7, 64, 100])
def test_shuffled_is_a_permutation(size):
    orders = briefly(jax.vmap(lambda key: shuffled(key, jnp.arange(size), size)))(
        jax.random.split(jax.random.key(0), 40)
    )
    np.testing.assert_array_equal(np.sort(orders, axis=1), np.broadcast_to(np.arange(size), (40, size)))
    if size >= 7:
        assert len({order.tobytes() for order in np.asarray(orders)}) >= 39
        places = np.asarray(orders)[:, 0]
        assert len(set(places.tolist())) > size // 5, "a number goes anywhere"


def test_large_arrays_stay_on_the_host():
    array = np.arange(5 * 2**20, dtype=np.uint8).reshape(-1, 16)
    index = jnp.array([[3, 70_000], [0, 9]])
    program = briefly(jax.vmap(lambda i: take(array, i)))
    assert len(program.lower(index).as_text()) < 10_000
    for values in (program(index), take(array, index)):
        np.testing.assert_array_equal(values, array[np.asarray(index)])
    small = Rows(array[:9], *[np.zeros(9, np.int32)] * 3)
    np.testing.assert_array_equal(take(small.inputs, index % 9), array[np.asarray(index) % 9])
