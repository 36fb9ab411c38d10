"""One file to give away: bitwise round trips, foreign files, and clear errors."""

from __future__ import annotations

import json

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from lenmem.share import export_params, import_params, import_state

PARAMS = {
    "layer": {"kernel": jnp.arange(6.0).reshape(2, 3).T, "bias": jnp.zeros((3, 0))},
    "half": jnp.asarray([1.5, -0.0], jnp.bfloat16),
    "steps": jnp.int32(7),
    "empty": {},
}
METADATA = {"experiment": {"class": "lenmem.experiment.Experiment", "name": "ä"}, "step": 3, "rates": [0.1, None]}


def test_round_trip_is_bitwise(tmp_path):
    path = tmp_path / "new" / "model.safetensors"
    export_params(path, PARAMS, METADATA)
    params, metadata = import_params(path)
    expected = {name: value for name, value in PARAMS.items() if name != "empty"}
    assert metadata == METADATA
    assert jax.tree.structure(params) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(params), jax.tree.leaves(expected), strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()
    assert [file.name for file in path.parent.iterdir()] == ["model.safetensors"]


def test_any_reader_can_open_it(tmp_path):
    path = tmp_path / "model.safetensors"
    export_params(str(path), {"a": {"b": np.ones(2)}}, {})
    assert list(safetensors.numpy.load_file(path)) == ["a/b"]
    with safetensors.safe_open(path, framework="np") as file:
        assert json.loads(file.metadata()["lenmem"]) == {}


def test_the_same_parameters_give_the_same_bytes_and_replace_the_file(tmp_path):
    path = tmp_path / "model.safetensors"
    export_params(path, {"a": np.zeros(3)}, {})
    export_params(path, PARAMS, METADATA)
    first = path.read_bytes()
    export_params(path, PARAMS, dict(reversed(METADATA.items())))
    assert path.read_bytes() == first


def test_plain_safetensors_files_can_be_read(tmp_path):
    path = tmp_path / "model.safetensors"
    safetensors.numpy.save_file({"x": np.ones(2, np.float32)}, path)
    params, metadata = import_params(path)
    assert params["x"].tolist() == [1, 1]
    assert metadata == {}


@pytest.mark.parametrize(
    "params, metadata, message",
    [
        ({"a/b": np.zeros(1)}, {}, 'must be a string without "/"'),
        ({"a": {3: np.zeros(1)}}, {}, 'must be a string without "/"'),
        ({"a": {"b": [np.zeros(1)]}}, {}, "a/b: parameters must be arrays, got a list"),
        ({"a": 3.0}, {}, "a: parameters must be arrays, got a float"),
        ({"key": jax.random.key(0)}, {}, "key: export jax.random.key_data"),
        (np.zeros(1), {}, "params must be nested dicts"),
        ({}, {"x": np.zeros(1)}, "metadata must be plain JSON"),
        ({}, {"x": float("nan")}, "metadata must be plain JSON"),
    ],
)
def test_what_cannot_be_exported(tmp_path, params, metadata, message):
    with pytest.raises(ValueError, match=message):
        export_params(tmp_path / "x", params, metadata)
    assert not list(tmp_path.iterdir())


def test_unwritable_and_unreadable_paths(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="file cannot be made a directory: .*file is a file"):
        export_params(tmp_path / "file" / "model", {}, {})
    (tmp_path / "folder").mkdir()
    with pytest.raises(ValueError, match="cannot write .*folder: "):
        export_params(tmp_path / "folder", {}, {})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]
    for path, message in (
        ("nowhere", "there is no file .*nowhere"),
        ("file", "file is not a readable safetensors file"),
        ("folder", "folder is a directory, not a safetensors file"),
    ):
        with pytest.raises(ValueError, match=message):
            import_params(tmp_path / path)


def test_damaged_and_hostile_files(tmp_path):
    path = tmp_path / "model.safetensors"
    export_params(path, PARAMS, METADATA)
    data = path.read_bytes()
    for damaged in (data[:-1], data[:20], b"\xff" * 8 + data[8:], data + b"x"):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match="is not a readable safetensors file"):
            import_params(path)
    for metadata, message in (("[]", "must be a JSON object"), ("{", "not a readable"), ("[" * 9999, "not a readable")):
        safetensors.numpy.save_file({"x": np.ones(1)}, path, {"lenmem": metadata})
        with pytest.raises(ValueError, match=message):
            import_params(path)
    for names in (("a", "a/b"), ("a/b", "a")):
        safetensors.numpy.save_file({name: np.ones(1, np.float32) for name in names}, path)
        with pytest.raises(ValueError, match="below another parameter|both a parameter and a group"):
            import_params(path)


STATE = {"step": np.int32(3), "moments": (jnp.ones(2), {"b": np.zeros((0, 2))})}


def test_a_state_travels_beside_the_parameters(tmp_path):
    path = tmp_path / "model.safetensors"
    export_params(path, PARAMS, METADATA, state=STATE)
    params, metadata = import_params(path)
    assert metadata == METADATA
    assert set(params) == {"layer", "half", "steps"}
    state = import_state(path, STATE)
    assert jax.tree.structure(state) == jax.tree.structure(STATE)
    chex.assert_trees_all_equal(state, STATE)
    for like, message in (
        (STATE | {"more": np.ones(1)}, "does not fit: more is missing"),
        ({"step": STATE["step"]}, "does not fit: moments/0 is unexpected, moments/1/b is unexpected"),
        (STATE | {"step": np.zeros(2)}, r"step is int32\[\], expected float64\[2\]"),
    ):
        with pytest.raises(ValueError, match=message):
            import_state(path, like)
    export_params(path, PARAMS, METADATA)
    with pytest.raises(ValueError, match="parameters only, .* export it --with-optimizer"):
        import_state(path, STATE)
