"""Checkpoints: exact round trips, atomicity, and damage that is found, named and never loaded."""

from __future__ import annotations

import json
import logging
import shutil
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import SingleDeviceSharding

from lenmem.keys import bits
from lenmem.training import checkpoint
from lenmem.training.checkpoint import (
    CheckpointError,
    is_intact,
    latest,
    read_manifest,
    restore,
    save,
    steps,
)

MANIFEST = {"experiment": {"class": "lenmem.Experiment", "rate": 0.1}, "note": "ä"}


class State(NamedTuple):
    params: Any
    optimizer: Any
    step: Any
    key: Any


def make(seed: int = 0) -> State:
    rng = np.random.default_rng(seed)
    params = {
        "layer": {"kernel": jnp.asarray(rng.normal(size=(3, 4)), jnp.float32), "bias": jnp.zeros(4)},
        "half": jnp.asarray(rng.normal(size=(2, 3)), jnp.bfloat16),
    }
    return State(params, optax.adam(0.1).init(params), jnp.int32(seed), jax.random.key(seed))


def assert_same(actual, expected):
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert a.dtype == b.dtype
    actual, expected = bits(actual), bits(expected)
    for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


def files(directory: Path) -> dict[str, bytes]:
    return {str(p.relative_to(directory)): p.read_bytes() for p in sorted(directory.rglob("*")) if p.is_file()}


def flip(path: Path, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(bytes(data))


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Path:
    """A directory with the checkpoints of steps 1 and 2; tests work on copies."""
    directory = tmp_path_factory.mktemp("written")
    for step in (1, 2):
        save(directory, step, make(step), MANIFEST)
    return directory


@pytest.fixture
def directory(written, tmp_path) -> Path:
    return Path(shutil.copytree(written, tmp_path / "checkpoints"))


def test_round_trip_is_bitwise(directory):
    state, manifest = restore(directory, make(0))
    assert_same(state, make(2))
    assert manifest == MANIFEST == read_manifest(directory)
    assert isinstance(state, State)
    assert_same(restore(directory, make(0), step=1)[0], make(1))
    abstract = jax.eval_shape(make)
    assert_same(restore(directory, abstract)[0], make(2))
    assert steps(directory) == [1, 2]
    assert latest(directory) == 2
    assert is_intact(directory, 1)
    assert not is_intact(directory, 3)


def test_odd_leaves(tmp_path):
    state = {
        "negative zero": np.full((2, 2), -0.0, np.float32),
        "nan": np.array([np.nan, -np.nan, np.inf]),
        "empty": np.zeros((0, 3), np.float16),
        "scalar": np.float32(3.0),
        "bool": np.array([True, False]),
        "fortran": np.asfortranarray(np.arange(6).reshape(2, 3)),
        "big endian": np.arange(3, dtype=">i4"),
        "a.b/c[0]": [np.uint8(1), (np.int64(2), None)],
        "complex": np.array([1 + 2j], np.complex64),
    }
    save(tmp_path, 0, state, {})
    loaded, _ = restore(tmp_path, state)
    assert_same(loaded, jax.tree.map(lambda x: x.astype(x.dtype.newbyteorder("=")), state))
    assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(loaded))
    save(tmp_path, 1, np.arange(3), {})
    assert restore(tmp_path, np.arange(3))[0].tolist() == [0, 1, 2]
    save(tmp_path, 2, {"nothing": None}, {"a": 1})
    assert restore(tmp_path, {"nothing": None}) == ({"nothing": None}, {"a": 1})


def test_a_part_of_the_state(directory):
    part, manifest = restore(directory, {"params": make().params}, partial=True)
    assert_same(part["params"], make(2).params)
    assert manifest == MANIFEST
    with pytest.raises(CheckpointError, match="step is only in the checkpoint"):
        restore(directory, {"params": make().params})


def test_placement(directory):
    state, _ = restore(directory, make())
    assert not state.params["half"].committed
    sharding = SingleDeviceSharding(jax.devices()[-1])
    like = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), make())
    state, _ = restore(directory, like)
    assert all(leaf.sharding == sharding and leaf.committed for leaf in jax.tree.leaves(state))
    # The train step donates its buffers: they must be the leaf's own.
    donated = jax.jit(lambda s: jax.tree.map(lambda x: x + x, s), donate_argnums=0)(state.params)
    np.testing.assert_array_equal(donated["layer"]["kernel"], 2 * make(2).params["layer"]["kernel"])


def test_only_the_newest_remain_and_later_ones_are_left_behind(tmp_path):
    state = {"x": np.arange(3)}
    for step in (5, 10, 100):
        save(tmp_path, step, state, {"step": step})
    assert steps(tmp_path) == [10, 100]
    save(tmp_path, 20, state, {"step": 20})
    assert steps(tmp_path) == [10, 20]
    save(tmp_path, 30, state, {}, keep=1)
    assert steps(tmp_path) == [30]
    assert [path.name for path in tmp_path.iterdir()] == ["30"]


def test_saving_a_step_again(directory):
    before = files(directory)
    save(directory, 2, make(2), MANIFEST)
    assert files(directory) == before
    save(directory, 2, make(7), MANIFEST)
    assert_same(restore(directory, make())[0], make(7))
    assert steps(directory) == [1, 2]
    flip(directory / "2" / "manifest.json", 99)
    save(directory, 2, make(7), MANIFEST)
    assert_same(restore(directory, make())[0], make(7))


def test_speed_and_size(tmp_path):
    state = {f"layer{i}": np.ones((50, 10), np.float32) * i for i in range(100)}
    save(tmp_path, 0, state, {})
    start = time.perf_counter()
    save(tmp_path, 1, state, {})
    print(f"200 kB in 100 leaves saved in {time.perf_counter() - start:.3f} s")  # shown by pytest -s, not asserted
    assert len(files(tmp_path / "1")) < 30


SMALL = {name: np.random.default_rng(0).normal(size=200).astype(np.float32) for name in "ab"}

# --- damage ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def small(tmp_path) -> Path:
    for step in (1, 2):
        save(tmp_path, step, SMALL, {"step": step})
    return tmp_path


def test_every_flipped_bit_is_found(small):
    """Bits of all files, chosen at random: nothing damaged is loaded, and the intact step is offered."""
    rng = np.random.default_rng(0)
    paths = sorted(p for p in (small / "2").rglob("*") if p.is_file() and p.stat().st_size)
    named = 0
    for _ in range(30):
        path = paths[rng.integers(len(paths))]
        bit = int(rng.integers(8 * path.stat().st_size))
        flip(path, bit)
        assert not is_intact(small, 2)
        with pytest.raises(CheckpointError, match="damaged.*the checkpoint of step 1 is intact") as caught:
            restore(small, SMALL)
        named += "no leaf" not in str(caught.value)
        flip(path, bit)
    assert_same(restore(small, SMALL)[0], SMALL)
    assert named > 0


def test_the_damaged_leaf_is_named(tmp_path):
    """Two leaves that cannot be compressed, in one or two data files: each flipped bit names its own leaf."""
    rng = np.random.default_rng(0)
    state = {name: rng.integers(0, 256, 4000, dtype=np.uint8) for name in ("first", "second")}
    save(tmp_path, 0, state, {})
    for name, leaf in state.items():
        raw = leaf[100:132].tobytes()
        path, data = next((p, d) for p in tmp_path.rglob("d/*") if raw in (d := p.read_bytes()))
        flip(path, 8 * data.index(raw) + 3)
        with pytest.raises(CheckpointError, match=f"damaged: leaf {name} in state/.*{path.name} .changed.; nothing"):
            restore(tmp_path, state)
        path.write_bytes(data)
    restore(tmp_path, state)


def test_leaves_are_checked_even_where_the_files_agree(directory):
    """A loader that returns something else than was saved is caught by the hash of the leaf."""
    body = json.loads((directory / "2" / "manifest.json").read_bytes())
    body["leaves"]["params/layer/bias"]["sha256"] = "0" * 64
    data = json.dumps(body).encode()
    (directory / "2" / "manifest.json").write_bytes(data)
    (directory / "2" / "manifest.sha256").write_text(checkpoint._sha256(data))
    with pytest.raises(CheckpointError, match="damaged: leaf params/layer/bias; nothing was loaded"):
        restore(directory, make())


@pytest.mark.parametrize("damage", ["truncate", "remove", "empty"])
def test_truncated_and_missing_files(small, damage):
    for name in sorted(files(small / "2")):
        path = small / "2" / name
        data = path.read_bytes()
        if not data:
            continue
        if damage == "remove":
            path.unlink()
        else:
            path.write_bytes(data[: len(data) // 2 if damage == "truncate" else 0])
        with pytest.raises(CheckpointError, match="damaged.*step 1 is intact"):
            restore(small, SMALL)
        path.write_bytes(data)
    shutil.rmtree(small / "2" / "state")
    with pytest.raises(CheckpointError, match=r"every leaf \(a, b\).*No such file"):
        restore(small, SMALL)


def test_when_nothing_is_intact(directory):
    for step in "12":
        (directory / step / "manifest.json").write_text("{}")
    with pytest.raises(CheckpointError, match="no other checkpoint is intact"):
        restore(directory, make())
    with pytest.raises(CheckpointError, match="manifest.json does not match"):
        read_manifest(directory, 1)


def test_a_hostile_manifest_with_the_right_hash(directory):
    for text in ("[]", "null", "[" * 100_000, "{}", '{"format": 2}', '{"format": 1}', "\xff"):
        data = text.encode("latin-1")
        (directory / "2" / "manifest.json").write_bytes(data)
        (directory / "2" / "manifest.sha256").write_text(checkpoint._sha256(data))
        with pytest.raises(CheckpointError, match="not a manifest"):
            restore(directory, make())


# --- misfits --------------------------------------------------------------------------------------------------------


def test_what_does_not_fit_is_named(directory):
    good = make()
    wrong = good._replace(params=good.params | {"half": jnp.zeros((2, 4), jnp.bfloat16), "new": jnp.zeros(1)})
    with pytest.raises(CheckpointError) as caught:
        restore(directory, wrong)
    message = str(caught.value)
    assert "params/half is bfloat16[2, 3], expected bfloat16[2, 4]" in message
    assert "params/new is not in the checkpoint" in message
    with pytest.raises(CheckpointError, match=r"step is int32\[\], expected float32\[\]"):
        restore(directory, good._replace(step=jnp.float32(0)))
    with pytest.raises(CheckpointError, match="`like` must hold arrays"):
        restore(directory, good._replace(step=0))
    many = {f"leaf{i}": np.zeros(1) for i in range(20)}
    with pytest.raises(CheckpointError, match="and .* more"):
        restore(directory, many)


@pytest.mark.parametrize(
    "state, manifest, message",
    [
        ({"a": {"step": 3}}, {}, "a/step: a state holds arrays only, got a int"),
        ({"name": np.array(["x"])}, {}, "name: an array of"),
        ({"name": np.array([None])}, {}, "name: an array of"),
        ({"x": np.zeros(1)}, {"rate": float("nan")}, "manifest must be plain JSON"),
        ({"x": np.zeros(1)}, {"rate": np.zeros(1)}, "manifest must be plain JSON"),
        ({"a": {"b": np.zeros(1)}, "a/b": np.zeros(1)}, {}, "two leaves of the state have the same name 'a/b'"),
    ],
)
def test_states_that_cannot_be_saved(tmp_path, state, manifest, message):
    with pytest.raises(CheckpointError, match=message):
        save(tmp_path / "new", 0, state, manifest)
    assert not (tmp_path / "new").exists()


def test_missing_checkpoints(directory, tmp_path):
    with pytest.raises(CheckpointError, match="no checkpoint in .*; there is none"):
        restore(tmp_path / "nowhere", make())
    with pytest.raises(CheckpointError, match="no checkpoint of step 7 in .*; there are 1, 2"):
        restore(directory, make(), step=7)
    assert steps(tmp_path / "nowhere") == []
    assert latest(tmp_path / "nowhere") is None
    for name in ("notes", "03", "-4", ".saving-9"):
        (directory / name).mkdir()
    (directory / "5").write_text("a file")
    assert steps(directory) == [1, 2]
    with pytest.raises(CheckpointError, match="must not be negative"):
        save(directory, -1, make(), {})
    with pytest.raises(CheckpointError, match="keep"):
        save(directory, 1, make(), {}, keep=0)


# --- failing and dying writers --------------------------------------------------------------------------------------


def test_a_full_disk(directory):
    """In a process of its own: Orbax's threads report the failure again, late, to whoever is running then."""
    before = files(directory)
    script = textwrap.dedent("""
        import resource, signal, sys
        import numpy as np
        from lenmem.training.checkpoint import CheckpointError, save, steps

        directory, state = sys.argv[1], {"big": np.random.default_rng(0).normal(size=30_000)}
        unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, unlimited[1]))
        try:
            save(directory, 3, state, {})
        except CheckpointError as error:
            print(error)
        print(steps(directory))
        resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
        if "again" in sys.argv:
            save(directory, 3, state, {})
            print(steps(directory))
    """)
    command = [sys.executable, "-c", script, str(directory)]
    first = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert "cannot write the checkpoint of step 3" in first[0]
    assert "File too large" in first[0]
    assert "step 2 is intact" in first[0]
    assert first[-1] == "[1, 2]"
    assert files(directory) == before
    second = subprocess.run([*command, "again"], capture_output=True, text=True, check=True).stdout.splitlines()
    assert second[-2:] == ["[1, 2]", "[2, 3]"]


def test_an_unwritable_directory(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="cannot write .*: Not a directory.*there is no other checkpoint"):
        save(tmp_path / "file" / "run", 0, {"x": np.zeros(1)}, {})


@pytest.mark.parametrize("moment", ["_write", "_file_entry", "_sync"])
def test_an_interrupted_save_leaves_the_others_alone(directory, monkeypatch, moment):
    before = files(directory)

    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, moment, interrupt)
        with pytest.raises(KeyboardInterrupt):
            save(directory, 3, make(3), MANIFEST)
    assert steps(directory) == [1, 2]
    kept = {name: data for name, data in files(directory).items() if not name.startswith(".")}
    assert kept == before
    save(directory, 3, make(3), MANIFEST)
    assert steps(directory) == [2, 3]
    assert not [path for path in directory.iterdir() if path.name.startswith(".")]


def test_sigkill_while_a_large_array_is_written(tmp_path):
    script = textwrap.dedent(
        """
        import sys
        import numpy as np
        from lenmem.training.checkpoint import save
        for step in range(1000):
            save(sys.argv[1], step, {"x": np.random.default_rng(step).normal(size=(2_000_000,))}, {"step": step})
            print(step, flush=True)
        """
    )
    like = {"x": np.zeros(2_000_000)}
    for pause in (0.01, 0.06):
        child = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        done = [int(child.stdout.readline()) for _ in range(2)][-1]
        time.sleep(pause)
        child.kill()
        child.wait()
        child.stdout.close()
        last = latest(tmp_path)
        assert last is not None
        assert last >= done
        for step in steps(tmp_path):
            state, manifest = restore(tmp_path, like, step)
            assert manifest == {"step": step}
            np.testing.assert_array_equal(state["x"], np.random.default_rng(step).normal(size=2_000_000))


def test_no_noise_and_the_logger_is_left_as_it_was(tmp_path, caplog, capfd):
    level = logging.getLogger("absl").level
    save(tmp_path, 0, {"x": np.zeros(3)}, {})
    restore(tmp_path, {"x": np.zeros(3)})
    assert logging.getLogger("absl").level == level
    assert not caplog.records
    assert capfd.readouterr() == ("", "")
