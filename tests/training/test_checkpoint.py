"""Checkpoints: exact round trips, atomicity, and damage that is found, named and never loaded."""

from __future__ import annotations

import json
import logging
import re
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
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding

from lenmem.keys import bits
from lenmem.training import checkpoint
from lenmem.training.checkpoint import (
    CheckpointError,
    Writer,
    is_intact,
    latest,
    read_manifest,
    restore,
    save,
    steps,
)

ROOT = Path(__file__).parents[2]
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
    with Writer(directory) as writer:
        for step in (1, 2):
            writer.save(step, make(step), MANIFEST)
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
    with pytest.raises(CheckpointError, match="step is unexpected"):
        restore(directory, {"params": make().params})


def test_placement(directory):
    state, _ = restore(directory, jax.eval_shape(make))
    assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(state.params))
    sharding = SingleDeviceSharding(jax.devices()[-1])
    like = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), make())
    state, _ = restore(directory, like)
    assert all(leaf.sharding == sharding and leaf.committed for leaf in jax.tree.leaves(state))
    # The train step donates its buffers: they must be the leaf's own.
    donated = jax.jit(lambda s: jax.tree.map(lambda x: x + x, s), donate_argnums=0)(state.params)
    np.testing.assert_array_equal(donated["layer"]["kernel"], 2 * make(2).params["layer"]["kernel"])


def test_only_the_newest_remain(tmp_path):
    state = {"x": np.arange(3)}
    with Writer(tmp_path, keep=2) as writer:
        for step in (5, 10, 100):
            writer.save(step, state, {"step": step})
    assert steps(tmp_path) == [10, 100]
    save(tmp_path, 200, state, {}, keep=1)
    assert [path.name for path in tmp_path.iterdir()] == ["200"]
    save(tmp_path, 300, state, {})
    assert steps(tmp_path) == [200, 300]


def test_a_step_that_is_whole_stays_as_it_is(directory):
    before = files(directory)
    save(directory, 2, make(7), MANIFEST)
    assert files(directory) == before
    flip(directory / "2" / "about" / "metadata", 99)
    save(directory, 2, make(7), MANIFEST)
    assert_same(restore(directory, make())[0], make(7))
    assert steps(directory) == [1, 2]


def test_what_is_saved_may_be_overwritten_at_once(tmp_path):
    """The train step takes the buffers of the state while they are being written."""
    state = {"jax": jnp.arange(2e6), "numpy": np.arange(2e6, dtype=np.float32)}
    advance = jax.jit(lambda x: x + 1, donate_argnums=0)
    with Writer(tmp_path) as writer:
        for step in range(3):
            writer.save(step, state, {})
            state["jax"] = advance(state["jax"])
            state["numpy"] += 1
    for step in range(3):
        saved, _ = restore(tmp_path, jax.eval_shape(lambda: state), step)
        np.testing.assert_array_equal(saved["numpy"], np.arange(2e6, dtype=np.float32) + step)
        np.testing.assert_array_equal(saved["jax"], np.arange(2e6, dtype=np.float32) + step)


def test_what_is_spread_over_devices_comes_back_over_others(tmp_path):
    mesh = jax.make_mesh((2,), ("rows",), axis_types=(jax.sharding.AxisType.Auto,))
    rows, everywhere = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (("rows",), ()))
    value = np.arange(12.0, dtype=np.float32).reshape(4, 3)
    save(tmp_path, 0, {"x": jax.device_put(value, rows), "empty": np.zeros((0, 2))}, {})
    like = {"x": jax.ShapeDtypeStruct((4, 3), np.float32), "empty": jax.ShapeDtypeStruct((0, 2), np.float64)}
    for sharding in (rows, everywhere):
        placed = jax.tree.map(lambda leaf, at=sharding: leaf.update(sharding=at), like)
        state, _ = restore(tmp_path, {"x": placed["x"], "empty": like["empty"]})
        assert state["x"].sharding == sharding
        np.testing.assert_array_equal(state["x"], value)
    assert isinstance(restore(tmp_path, like)[0]["x"], np.ndarray)


def test_it_has_few_files_whose_hashes_any_tool_checks(tmp_path):
    save(tmp_path, 0, {f"layer{i}": np.ones((50, 10), np.float32) * i for i in range(100)}, {})
    assert len(files(tmp_path / "0")) < 30
    if shutil.which("sha256sum"):
        subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=tmp_path / "0", check=True)


SMALL = {name: np.random.default_rng(0).normal(size=200).astype(np.float32) for name in "ab"}

# --- damage ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def small(tmp_path) -> Path:
    with Writer(tmp_path) as writer:
        for step in (1, 2):
            writer.save(step, SMALL, {"step": step})
    return tmp_path


def test_every_flipped_bit_is_found(small):
    """Bits of all files, chosen at random: nothing damaged is loaded, and the intact step is offered."""
    rng = np.random.default_rng(0)
    paths = sorted(p for p in (small / "2").rglob("*") if p.is_file() and p.stat().st_size)
    for _ in range(30):
        path = paths[rng.integers(len(paths))]
        bit = int(rng.integers(8 * path.stat().st_size))
        flip(path, bit)
        assert not is_intact(small, 2)
        file = path.relative_to(small / "2").as_posix()
        named = "is" if file == "SHA256SUMS" else re.escape(f"{file} is changed")
        with pytest.raises(CheckpointError, match=f"damaged: .*{named}.*the checkpoint of step 1 is intact"):
            restore(small, SMALL)
        flip(path, bit)
    assert_same(restore(small, SMALL)[0], SMALL)


def test_the_newest_of_the_others_that_are_intact_is_offered(small):
    save(small, 3, SMALL, {})
    for damaged, offered in ((3, 2), (2, 1)):
        (small / str(damaged) / "about" / "metadata").write_text("{}")
        with pytest.raises(CheckpointError, match=f"the checkpoint of step {offered} is intact"):
            restore(small, SMALL)


def test_the_hashes_are_noticed_too(small):
    path, hashes = small / "2" / "SHA256SUMS", checkpoint._hashes(small / "2")
    assert checkpoint._recorded(small / "2") == hashes
    for bit in np.random.default_rng(0).integers(8 * path.stat().st_size, size=300).tolist():
        flip(path, bit)
        assert checkpoint._recorded(small / "2") != hashes
        flip(path, bit)


def test_a_part_is_read_and_checked_without_the_optimizer(tmp_path):
    state = {"params": SMALL, "optimizer_state": SMALL}
    save(tmp_path, 0, state, {})
    data = next(path for path in (tmp_path / "0" / "optimizer").rglob("d/*"))
    flip(data, 3)
    assert_same(restore(tmp_path, {"params": SMALL}, partial=True)[0]["params"], SMALL)
    with pytest.raises(CheckpointError, match=f"optimizer/.*{data.name} is changed; nothing was loaded"):
        restore(tmp_path, state)


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
    (small / "2" / "more").write_text("")
    with pytest.raises(CheckpointError, match="damaged: more is not recorded"):
        restore(small, SMALL)
    shutil.rmtree(small / "2" / "state")
    with pytest.raises(CheckpointError, match="state/_METADATA is missing.* and .* more"):
        restore(small, SMALL)


def test_when_nothing_is_intact(directory):
    for step in "12":
        (directory / step / "about" / "metadata").write_text("{}")
    with pytest.raises(CheckpointError, match="no other checkpoint is intact"):
        restore(directory, make())
    with pytest.raises(CheckpointError, match="about/metadata is changed"):
        read_manifest(directory, 1)


def test_a_hostile_description_with_the_right_hash(directory):
    leaf = {"item": "state", "shape": [3], "dtype": "float32"}
    leaves = [3, {"x": 3}, {"x": leaf | {"dtype": "os.system"}}, {"x": leaf | {"shape": "a"}}]
    texts = [json.dumps({"manifest": {}, "leaves": item}) for item in leaves]
    for text in ("[]", "null", "[" * 100_000, "{}", '{"manifest": {}}', "\xff", *texts):
        (directory / "2" / "about" / "metadata").write_bytes(text.encode("latin-1"))
        checkpoint._seal(directory / "2")
        with pytest.raises(CheckpointError, match="not a checkpoint that this version|does not fit"):
            restore(directory, make())


# --- misfits --------------------------------------------------------------------------------------------------------


def test_what_does_not_fit_is_named(directory):
    good = make()
    wrong = good._replace(params=good.params | {"half": jnp.zeros((2, 4), jnp.bfloat16), "new": jnp.zeros(1)})
    with pytest.raises(CheckpointError) as caught:
        restore(directory, wrong)
    message = str(caught.value)
    assert "params/half is bfloat16[2, 3], expected bfloat16[2, 4]" in message
    assert "params/new is missing" in message
    with pytest.raises(CheckpointError, match=r"step is int32\[\], expected float32\[\]"):
        restore(directory, good._replace(step=jnp.float32(0)))
    many = {f"leaf{i}": np.zeros(1) for i in range(20)}
    with pytest.raises(CheckpointError, match="and .* more"):
        restore(directory, many)


@pytest.mark.parametrize(
    "state, manifest, message",
    [
        ({"a": {"step": "3"}}, {}, "a/step: an array of <U1 cannot be saved; allowed are numbers and bools"),
        ({"name": np.array(["x"])}, {}, "name: an array of"),
        ({"name": np.array([None])}, {}, "name: an array of"),
        ({"x": np.zeros(1)}, {"rate": float("nan")}, "manifest must be plain JSON"),
        ({"x": np.zeros(1)}, {"rate": np.zeros(1)}, "manifest must be plain JSON"),
        ({"a": {"b": np.zeros(1)}, "a/b": np.zeros(1)}, {}, "two leaves have the same name 'a/b'"),
    ],
)
def test_states_that_cannot_be_saved(tmp_path, state, manifest, message):
    with pytest.raises(ValueError, match=message):
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


# --- failing and dying writers --------------------------------------------------------------------------------------


def test_a_full_disk(directory):
    """In a process of its own: Orbax's threads report the failure again, late, to whoever is running then."""
    script = textwrap.dedent("""
        import resource, signal, sys
        from pathlib import Path
        import numpy as np
        from lenmem.training.checkpoint import CheckpointError, save, steps

        def files():
            return {path: path.read_bytes() for path in Path(directory).rglob("*") if path.is_file()}

        directory, state = sys.argv[1], {"big": np.random.default_rng(0).normal(size=30_000)}
        before = files()
        unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, unlimited[1]))
        try:
            save(directory, 3, state, {})
        except CheckpointError as error:
            print(error)
        print(steps(directory), files() == before)
        resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
        save(directory, 3, state, {}, keep=2)
        print(steps(directory))
    """)
    command = [sys.executable, "-c", script, str(directory)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert "cannot write the checkpoint of step 3" in said[0]
    assert "File too large" in said[0]
    assert "step 2 is intact" in said[0]
    assert said[-2:] == ["[1, 2] True", "[2, 3]"]


def test_an_unwritable_directory(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="cannot write .*: Not a directory.*there is no other checkpoint"):
        save(tmp_path / "file" / "run", 0, {"x": np.zeros(1)}, {})


@pytest.mark.parametrize("moment", ["_seal", "_sha256"])
def test_an_interrupted_save_leaves_the_others_alone(directory, monkeypatch, moment):
    before = files(directory)

    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, moment, interrupt)
        with pytest.raises(KeyboardInterrupt):
            save(directory, 3, make(3), MANIFEST)
    assert steps(directory) == [1, 2]
    kept = {name: data for name, data in files(directory).items() if "tmp" not in name}
    assert kept == before
    save(directory, 3, make(3), MANIFEST, keep=2)
    assert sorted(path.name for path in directory.iterdir()) == ["2", "3"]


@pytest.mark.thorough
def test_sigkill_while_a_large_array_is_written(tmp_path):
    script = textwrap.dedent(
        """
        import sys
        import numpy as np
        from lenmem.training.checkpoint import Writer
        with Writer(sys.argv[1], keep=2) as writer:
            for step in range(1000):
                writer.save(step, {"x": np.random.default_rng(step).normal(size=(2_000_000,))}, {"step": step})
                if step % 2:
                    writer.wait()
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


@pytest.mark.slow
def test_nothing_is_lost_at_random_moments():
    """Trainings that are killed end as an uninterrupted one, and every flipped bit is found; 100 of each by hand."""
    command = [sys.executable, "scripts/torture.py", "3", "--bits", "20"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "3 of 3 runs ended bitwise equal" in run.stdout and "20 of 20 flipped bits found" in run.stdout
