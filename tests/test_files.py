"""Files: JSON with a message for damage, atomic writing, and directories."""

from __future__ import annotations

import json
import math
import os

import pytest

from lenmem.files import json_number, make_directory, read_json, write_json, write_whole


def test_json_comes_back_and_what_json_lacks_is_refused(tmp_path):
    path = tmp_path / "record.json"
    write_json(path, {"a": [1, None, "é"]})
    assert read_json(path) == {"a": [1, None, "é"]}
    with pytest.raises(ValueError, match="nan"):
        write_json(path, {"a": float("nan")})
    assert read_json(path) == {"a": [1, None, "é"]}, "the file is as it was"


def test_numbers_for_json(tmp_path):
    write_json(tmp_path / "numbers.json", [json_number(x) for x in (0.5, math.nan, math.inf, -math.inf)])
    half, nothing, high, low = read_json(tmp_path / "numbers.json")
    assert (half, nothing, low) == (0.5, None, -high) and high > 1e308


def test_nan_of_an_old_record_is_none_and_damage_is_named(tmp_path):
    path = tmp_path / "record.json"
    path.write_text('{"accuracy": [0.5, NaN]}')
    assert read_json(path) == {"accuracy": [0.5, None]}
    path.write_text('{"accuracy": [0.5,')
    with pytest.raises(ValueError, match="record.json is not a JSON file: "):
        read_json(path)


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "curve.json"
    write_whole(path, b"old")

    def full(*_):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="disk full"):
        write_whole(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["curve.json"]


def test_two_processes_write_under_different_names(tmp_path, monkeypatch):
    names = []
    monkeypatch.setattr(os, "replace", lambda partial, _: names.append(partial.name))
    for process in (1, 2):
        monkeypatch.setattr(os, "getpid", lambda process=process: process)
        write_whole(tmp_path / "curve.json", b"new")
    assert len(set(names)) == 2


@pytest.mark.parametrize("below", ["file", "file/runs/copy"])
def test_a_file_where_a_directory_is_wanted_is_named(tmp_path, below):
    (tmp_path / "file").write_text(json.dumps(1))
    with pytest.raises(ValueError, match=rf"{below} cannot be made a directory: .*/file is a file"):
        make_directory(tmp_path / below)
    (tmp_path / "nowhere").symlink_to(tmp_path / "missing")
    with pytest.raises(ValueError, match=r"/nowhere is a file"):
        make_directory(tmp_path / "nowhere")
    make_directory(tmp_path / "runs/copy")
    make_directory(tmp_path / "runs/copy")
    assert (tmp_path / "runs/copy").is_dir()
