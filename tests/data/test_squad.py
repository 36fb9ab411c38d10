"""The reader of SQuAD 1.1 and of BERT's vocabularies, on files in the published form."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path

import pytest

from lenmem.data import squad, wordpiece

EXAMPLE = squad.example()


def write(directory: Path, contents=EXAMPLE) -> Path:
    """The example as published files."""
    for name, value in contents.items():
        (directory / name).write_text(json.dumps(value, ensure_ascii=False), encoding="utf-8")
    return directory


def test_both_files_are_put_together(tmp_path):
    found = squad.read_directory(write(tmp_path))
    assert found == squad.read_directory("example") and len(found) == 240
    for one in found:
        assert all(one.context[start : start + len(text)] == text for start, text in one.answers)
    assert found[2].question == "Where is the map?" and found[2].answers[0][1] == "the forge"
    assert [len(one.answers) for one in found] == [1] * 200 + [2] * 40
    assert len({one.identity for one in found}) == 240


def paragraph(value):
    """The second paragraph of the first file."""
    return value["train-v1.1.json"]["data"][0]["paragraphs"][1]


PLACE = r"train-v1\.1\.json, data\[0\]\.paragraphs\[1\]"
CHANGES = [
    (lambda v: v["train-v1.1.json"].pop("data"), r"train-v1\.1\.json: there is no 'data'; it has 'version'"),
    (lambda v: v["dev-v1.1.json"].update(data={}), r"dev-v1\.1\.json, data: got \{\}; expected a list"),
    (lambda v: v["dev-v1.1.json"].update(data=[]), r"dev-v1\.1\.json: it has no question"),
    (
        lambda v: v["train-v1.1.json"]["data"].insert(0, "x"),
        r"data\[0\]: got \"x\"; expected an object with 'paragraphs'",
    ),
    (lambda v: paragraph(v).pop("context"), rf"{PLACE}: there is no 'context'; it has 'qas'"),
    (lambda v: paragraph(v).update(context=3), rf"{PLACE}\.context: got 3; expected a text"),
    (lambda v: paragraph(v)["qas"][1].pop("question"), rf"{PLACE}\.qas\[1\]: there is no 'question'"),
    (lambda v: paragraph(v)["qas"][0].update(answers=[]), rf"{PLACE}\.qas\[0\]: it has no answer"),
    (
        lambda v: paragraph(v)["qas"][0]["answers"][0].update(answer_start="4"),
        rf"{PLACE}\.qas\[0\]\.answers\[0\]\.answer_start: got \"4\"; expected a whole number",
    ),
    (
        lambda v: paragraph(v)["qas"][0]["answers"][0].update(text="the moon"),
        rf"{PLACE}\.qas\[0\]\.answers\[0\]: 'the moon' is not in its context",
    ),
    (lambda v: paragraph(v)["qas"][0]["answers"][0].update(text=" "), r"answers\[0\]: its text is empty"),
]


@pytest.mark.parametrize("change, message", CHANGES)
def test_a_wrong_entry_is_one_line_with_its_place(tmp_path, change, message):
    contents = copy.deepcopy(EXAMPLE)
    change(contents)
    with pytest.raises(ValueError, match=message) as error:
        squad.read_directory(write(tmp_path, contents))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "damage, message",
    [
        (lambda raw: raw[:-500], r"line 1, column \d+: it is not JSON \(it is cut off\)"),
        (lambda raw: raw[: raw.index(b"took") + 2], r"line 1, column \d+: it is not JSON \(it is cut off\)"),
        (lambda raw: raw.replace(b"}", b"", 1), r"line 1, column \d+: it is not JSON \(Expecting"),
        (lambda raw: b"{\n\n" + raw.replace(b"mill", b"m\xefll"), r"dev-v1\.1\.json, line 3: it is not UTF-8"),
        (lambda raw: b"[" * 200_000, "it cannot be read as JSON"),
        (lambda raw: b"[" + b"1" * 5000 + b"]", "it cannot be read as JSON"),
        (lambda raw: raw.replace(b'"id": "', b'"id": "\\ud800', 1), "which has half of a surrogate pair"),
        (
            lambda raw: re.sub(rb'"answer_start": \d+', b'"answer_start": -7', raw, count=1),
            "answer_start is -7",
        ),
        (lambda raw: b"", r"line 1, column 1: it is not JSON \(it is cut off\)"),
        (None, r"dev-v1\.1\.json cannot be read \(No such file .*\); expected a directory with train-v1\.1\.json and"),
    ],
)
def test_a_damaged_or_missing_file_is_one_line(tmp_path, damage, message):
    path = write(tmp_path) / "dev-v1.1.json"
    if damage is None:
        path.unlink()
    else:
        path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match=message) as error:
        squad.read_directory(tmp_path)
    assert "\n" not in str(error.value) and str(path) in str(error.value)


def test_an_answer_that_begins_elsewhere_is_taken_where_it_is(tmp_path):
    """Two characters beside it, the nearest of two places."""
    contents = copy.deepcopy(EXAMPLE)
    one = paragraph(contents)
    one["context"] = "the map, the map, the map"
    one["qas"] = [{"id": "a", "question": "What?", "answers": [{"answer_start": 12, "text": "the map"}]}]
    found = squad.read_file(write(tmp_path, contents) / "train-v1.1.json")
    assert found[2].answers == ((9, "the map"),)


def test_pieces_are_the_longest_of_the_vocabulary(tmp_path):
    """Greedy from the left, in lower case, without accents; a word without pieces is unknown; places are characters."""
    pieces = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "un", "##aff", "##able", "##a", "una", "caf", "##e", "!", "É")
    (tmp_path / "vocab.txt").write_text("\n".join(pieces) + "\n", encoding="utf-8")
    assert wordpiece.read(tmp_path) == wordpiece.read(tmp_path / "vocab.txt") == pieces
    texts = ["Unaffable café!", "", "  unaffx [SEP]"]
    shown = [[pieces[i] for i in text.ids] for text in wordpiece.split(pieces, texts, lowercase=True)]
    assert shown == [["[UNK]", "caf", "##e", "!"], [], ["[UNK]", "[UNK]", "[UNK]", "[UNK]"]]
    (found,) = wordpiece.split(pieces, ["  CAFÉ!"], lowercase=True)
    assert found.places == [(2, 5), (5, 6), (6, 7)]
    (cased,) = wordpiece.split(pieces, ["É cafe"], lowercase=False)
    assert [pieces[i] for i in cased.ids] == ["É", "caf", "##e"]


@pytest.mark.parametrize(
    "contents, message",
    [
        (b"[PAD]\n\n[UNK]\n", r"vocab\.txt, line 2: it is empty"),
        (b"[PAD]\na\nb\na\n", r"vocab\.txt, line 4: 'a' is also on line 2"),
        (b"[PAD]\n[UNK]\n[CLS]\n", r"vocab\.txt: there is no \[SEP\]"),
        (b"[PAD]\n[UNK]\n\xff\n", r"vocab\.txt, line 3: it is not UTF-8"),
        (None, r"vocab\.txt cannot be read \(No such file .*expected a vocab\.txt of BERT"),
    ],
)
def test_a_wrong_vocabulary_is_one_line(tmp_path, contents, message):
    if contents is not None:
        (tmp_path / "vocab.txt").write_bytes(contents)
    with pytest.raises(ValueError, match=message):
        wordpiece.read(tmp_path / "vocab.txt")


def test_the_vocabulary_of_the_example_has_no_unknown_words():
    pieces = wordpiece.example()
    assert len(set(pieces)) == len(pieces) and pieces[wordpiece.SEPARATOR] == "[SEP]" and pieces[0] == "[PAD]"
    texts = [text for one in squad.read_directory("example") for text in (one.context, one.question)]
    assert all(pieces.index("[UNK]") not in found.ids for found in wordpiece.split(pieces, texts, lowercase=True))
