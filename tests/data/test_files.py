"""Readers of local files, on fixtures and made files."""

from __future__ import annotations

import sys
import types
from pathlib import Path

import numpy as np
import pytest

from lenmem.data import cifar10, imdb, listops
from lenmem.data.rows import make_rows, padded
from lenmem.data.tfds import examples

IMDB = Path(__file__).parent / "fixtures" / "aclImdb"


def test_reviews():
    texts, labels = imdb.read_directory(str(IMDB), "train")
    assert texts == [b"A dull film.\n", b"Never again.\n", "Très bien!\n".encode(), b"Go and see it.\n"]
    assert labels == [0, 0, 1, 1]


def test_missing_reviews(tmp_path):
    with pytest.raises(ValueError, match=r"train/neg has no \*\.txt; .* aclImdb directory of https.*test/pos"):
        imdb.read_directory(str(tmp_path), "train")


def write_images(directory: Path, count: int = 3) -> dict[str, np.ndarray]:
    """Files of the binary version: label, red plane, green plane, blue plane."""
    rng = np.random.default_rng(0)
    records = {}
    for name in sum(cifar10.FILES.values(), ()):
        records[name] = rng.integers(0, 256, (count, 3073), np.uint8)
        records[name][:, 0] %= 10
        records[name].tofile(directory / name)
    return records


def test_images(tmp_path):
    records = write_images(tmp_path)
    images, labels = cifar10.read_directory(str(tmp_path), "train")
    assert images.shape == (15, 32, 32, 3) and labels.shape == (15,)
    record = records["data_batch_2.bin"][1]
    assert labels[4] == record[0]
    for row, column, channel in ((0, 0, 0), (5, 31, 1), (31, 2, 2)):
        assert images[4, row, column, channel] == record[1 + 1024 * channel + 32 * row + column]
    assert len(cifar10.read_directory(str(tmp_path), "test")[0]) == 3


def test_grey():
    images = np.array([[[255, 255, 255], [255, 0, 0], [0, 255, 0], [0, 0, 255], [0, 0, 0], [10, 200, 30]]], np.uint8)
    assert cifar10.grey(images).tolist() == [[255, 76, 149, 29, 0, 124]]


def test_missing_or_damaged_images(tmp_path):
    with pytest.raises(ValueError, match=r"data_batch_1\.bin cannot be read .* binary version.* test_batch\.bin"):
        cifar10.read_directory(str(tmp_path), "train")
    (tmp_path / "test_batch.bin").write_bytes(b"x" * 4000)
    with pytest.raises(ValueError, match=r"test_batch\.bin has 4000 bytes; .* has 3073 for each image"):
        cifar10.read_directory(str(tmp_path), "test")
    (tmp_path / "test_batch.bin").write_bytes(bytes(3073) + b"x" * 3073)
    with pytest.raises(ValueError, match=r"test_batch\.bin, image 2: its class is 120; classes are 0 to 9"):
        cifar10.read_directory(str(tmp_path), "test")


EXPRESSIONS = {
    "( ( ( ( [MAX 2 ) 9 ) ( ( ( [MIN 4 ) 7 ) ] ) ) ] )": (9, [11, 2, 9, 10, 4, 7, 14, 14]),
    "( ( ( [SM 5 ) 6 ) ] )": (1, [13, 5, 6, 14]),
}
"""As the benchmark writes them -> their values and token ids."""


def test_list_operations(tmp_path):
    """The benchmark's files, with the line ends of Python's csv module or others, and as saved on Windows."""
    for end, encoding in (("\r\n", "utf-8"), ("\n", "utf-8"), ("\r\n", "utf-8-sig")):
        lines = ["Source\tTarget", *(f"{text}\t{value}" for text, (value, _) in EXPRESSIONS.items())]
        (tmp_path / "basic_val.tsv").write_bytes("".join(line + end for line in lines).encode(encoding))
        trees, values = listops.read_directory(str(tmp_path), "validation")
        assert list(zip(values, trees, strict=True)) == list(EXPRESSIONS.values())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "line 1: got ''; the header is Source, tab, Target"),
        (b"Source,Target\n", "line 1: got 'Source,Target'; the header"),
        (b"Source\tTarget\n", "has no expressions, only a header"),
        (b"Source\tTarget\n[MAX 1 2 ]\t2\n[MAX 1 \n", r"line 3: '\[MAX 1 ' is not a complete expression"),
        (b"Source\tTarget\n[MAX 1 2 ] 3\t2\n", "line 2: .* is not a complete expression"),
        (b"Source\tTarget\n[MED 1 [SM ] 4 ]\t1\n", "line 2: .* is not a complete expression"),
        (b"Source\tTarget\n[MAX 1 2 ]\t9\n", r"line 2: got the value 9 after the tab; that of '\[MAX 1 2 \]' is 2"),
        (b"Source\tTarget\n[MAX 1 2 ]", "line 2: got '' after the tab; a value is one digit"),
        (b"Source\tTarget\n[MAX 1 2 ]\t12", "line 2: got '12' after the tab"),
        (b"Source\tTarget\n[MAX 1 12 ]\t2", "line 2: '12' is not a symbol; allowed are 0, 1, .*, ]"),
        (b"Source\tTarget\n[MAX 1 \xc3\xa9 ]\t2", "is not plain text: byte 21 is not an ASCII character"),
    ],
)
def test_damaged_list_operations(tmp_path, content, message):
    (tmp_path / "basic_test.tsv").write_bytes(content)
    with pytest.raises(ValueError, match=rf"basic_test\.tsv,? {message}"):
        listops.read_directory(str(tmp_path), "test")


def test_missing_list_operations(tmp_path):
    with pytest.raises(ValueError, match=r"basic_train\.tsv cannot be read .* listops-1000 .* basic_test\.tsv"):
        listops.read_directory(str(tmp_path), "train")


def test_tfds(monkeypatch):
    """Features in TFDS's form, from a stand-in: text is bytes."""
    data = {
        "imdb_reviews": [{"text": b"Good.", "label": np.int64(1)}, {"text": b"Bad.", "label": np.int64(0)}],
        "cifar10": [{"image": np.full((32, 32, 3), 7, np.uint8), "label": np.int64(4), "id": b"train_1"}],
    }
    module = types.SimpleNamespace(data_source=lambda name, *, split: data[name])
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", module)
    assert imdb.read_tfds("train") == ([b"Good.", b"Bad."], [1, 0])
    images, labels = cifar10.read_tfds("train")
    assert images.shape == (1, 32, 32, 3) and (images == 7).all() and labels.tolist() == [4]
    with pytest.raises(ValueError, match=r"TFDS has no other .* \(KeyError: 'other'\).*tfds build other"):
        list(examples("other", "train", ("text",)))
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    with pytest.raises(ValueError, match=r"needs: pip install 'lenmem\[data\]'"):
        imdb.read_tfds("train")


def test_padded_rows():
    rows, lengths = padded(np.arange(6, dtype=np.uint8), np.array([2, 0, 3, 1]))
    assert lengths.tolist() == [2, 0, 3, 1]
    assert rows.tolist() == [[0, 1, 0], [0, 0, 0], [2, 3, 4], [5, 0, 0]]
    made = make_rows([b"abc", [1, 2]], [[1], []], input_size=2)
    assert made.inputs.tolist() == [[97, 98], [1, 2]] and made.input_lengths.tolist() == [2, 2]
    assert made.answers.tolist() == [[1], [0]] and made.answer_lengths.tolist() == [1, 0]
    assert len(made) == 2 and made[np.array([1])].inputs.tolist() == [[1, 2]]
