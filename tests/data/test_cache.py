"""The on-disk cache: arrays are built once, rebuilt if damaged, and never half written."""

from __future__ import annotations

import os

import chex
import numpy as np
import pytest

from lenmem.data.cache import cache_directory, cached


@pytest.fixture(autouse=True)
def directory(tmp_path, monkeypatch):
    monkeypatch.setenv("LENMEM_CACHE", str(tmp_path / "kept"))
    return tmp_path / "kept"


def build(calls):
    def arrays():
        calls.append(1)
        return {"a": np.arange(5, dtype=np.uint8), "b": np.eye(2)}

    return arrays


def same(left, right):
    chex.assert_trees_all_equal(dict(left), dict(right), strict=True)


def test_made_once_for_each_setting(directory):
    calls = []
    first = cached("x", {"size": 1}, build(calls))
    same(cached("x", {"size": 1}, build(calls)), first)
    assert len(calls) == 1
    cached("x", {"size": 2}, build(calls))
    cached("y", {"size": 1}, build(calls))
    assert len(calls) == 3
    assert len(list(directory.iterdir())) == 3, "nothing is left beside the files"


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "other"])
def test_damaged_files_are_made_anew(directory, damage):
    calls = []
    first = cached("x", {}, build(calls))
    (path,) = directory.iterdir()
    data = bytearray(path.read_bytes())
    if damage == "other":
        np.savez(path, a=first["a"])
    else:
        at = data.index(bytes(range(5)))
        data[at] ^= 1
        path.write_bytes({"cut": data[:-40], "flip": data, "empty": b""}[damage])
    same(cached("x", {}, build(calls)), first)
    same(cached("x", {}, build(calls)), first)
    assert len(calls) == 2


@pytest.mark.thorough
def test_no_damaged_byte_is_an_error(directory):
    calls = []
    first = cached("x", {}, build(calls))
    (path,) = directory.iterdir()
    whole = path.read_bytes()
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        same(cached("x", {}, build(calls)), first)


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_files_are_readable_by_those_whom_the_user_allows(directory, mask, mode):
    before = os.umask(mask)
    try:
        cached("x", {}, build([]))
    finally:
        os.umask(before)
    assert [path.stat().st_mode & 0o777 for path in directory.iterdir()] == [mode]


def test_a_failed_build_leaves_nothing(directory):
    def fail():
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        cached("x", {}, fail)
    assert not directory.exists() or not list(directory.iterdir())


def test_a_directory_that_cannot_be_written(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LENMEM_CACHE", str(tmp_path / "file"))
    with pytest.raises(ValueError, match="cannot be written .* set LENMEM_CACHE"):
        cached("x", {}, build([]))


def test_default_directories(monkeypatch, tmp_path):
    monkeypatch.delenv("LENMEM_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_directory() == tmp_path / "lenmem"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_directory().parts[-2:] == (".cache", "lenmem")
