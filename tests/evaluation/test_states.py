"""Analyses of controller states, on handmade paths and gates."""

from __future__ import annotations

import itertools
import math
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lenmem import models
from lenmem.evaluation.states import (
    curvature,
    pca_map,
    states_of,
    symbols_of,
    tsne_map,
)
from lenmem.evaluation.traces import collect
from lenmem.tasks.base import draw
from lenmem.tasks.dnc import BinaryAdd
from lenmem.types import Batch
from tests.evaluation.paths import traces_of


def circle(steps: int, turns: float, d: int = 2) -> np.ndarray:
    """Equal steps around a circle, in a tilted plane of d dimensions."""
    angle = 2 * np.pi * turns * np.arange(steps) / (steps - 1)
    plane = np.linalg.qr(np.random.default_rng(d).normal(size=(d, 2)))[0]
    return np.stack([np.cos(angle), np.sin(angle)], -1) @ plane.T


# --- curvature --------------------------------------------------------------------------------------------------------


def test_lines_are_straight_and_reversals_are_not():
    line = np.arange(9.0)[:, None] * [1, 2, -1]
    assert curvature(traces_of([line, line[::-1]])).mean == pytest.approx(0, abs=1e-6)
    there_and_back = np.arange(9.0)[:, None] % 2 * [1, 2, -1]
    assert curvature(traces_of([there_and_back])).mean == pytest.approx(2)
    square = np.array([[0, 0], [1, 0], [1, 1], [0, 1], [0, 0]])
    assert curvature(traces_of([square])).mean == pytest.approx(math.sqrt(2))


@pytest.mark.parametrize("d", [2, 30])
def test_a_circle_turns_by_the_angle_of_its_steps(d):
    result = curvature(traces_of([circle(41, 2, d)]))
    assert result.mean == pytest.approx(2 * math.sin(2 * math.pi * 2 / 40 / 2))
    assert result.explained == pytest.approx(1)


def test_every_turn_counts_the_same():
    corner = np.array([[0.0, 0], [1, 0], [1, 1], [1, 2], [1, 3], [9, 9]])
    line = np.arange(6.0)[:, None] * [1, 1]
    result = curvature(traces_of([corner, line, line], steps=(5, 4, 2)))
    np.testing.assert_allclose(result.by_example, [math.sqrt(2) / 3, 0, math.nan], atol=1e-7)
    assert result.mean == pytest.approx(math.sqrt(2) / 5), "3 turns and 2, and none of the third"


def test_a_state_that_stays_has_no_direction():
    path = np.array([[0.0, 0], [1, 0], [1, 0], [1, 1], [1, 2]])
    rounded = path + 3e-7 * np.random.default_rng(0).normal(size=path.shape)  # about float32's precision
    for stays in (path, rounded):
        assert curvature(traces_of([stays])).mean == pytest.approx(0, abs=1e-5)
    with pytest.raises(ValueError, match="no turn to measure"):
        curvature(traces_of([np.ones((5, 2))]))
    with pytest.raises(ValueError, match="no turn to measure"):
        curvature(traces_of([path], steps=(2,)))


@given(st.integers(0, 1000), st.floats(0.1, 10))
def test_curvature_ignores_place_size_and_rotation(seed, scale):
    rng = np.random.default_rng(seed)
    paths = rng.normal(size=(3, 7, 5))
    turned = scale * paths @ np.linalg.qr(rng.normal(size=(5, 5)))[0] + rng.normal(size=5)
    first, second = curvature(traces_of(paths)), curvature(traces_of(turned))
    assert 0 <= first.mean <= 2
    np.testing.assert_allclose(second.by_example, first.by_example, rtol=1e-6)


def test_curvature_after_projection():
    """Written from the equations: movement outside the components is not seen."""
    rng = np.random.default_rng(0)
    paths = rng.normal(size=(4, 9, 6)) * [5, 4, 3, 0.1, 0.1, 0.1]
    flat = paths.reshape(-1, 6) - paths.reshape(-1, 6).mean(0)
    values, axes = np.linalg.eigh(flat.T @ flat)
    seen = (flat @ axes[:, -3:]).reshape(4, 9, 3)
    kappa = []
    for path in seen:
        d = [(b - a) / np.sqrt(np.sum((b - a) ** 2)) for a, b in itertools.pairwise(path)]
        kappa += [np.sqrt(np.sum((b - a) ** 2)) for a, b in itertools.pairwise(d)]
    result = curvature(traces_of(paths), components=3)
    assert result.mean == pytest.approx(np.mean(kappa))
    assert result.explained == pytest.approx(values[-3:].sum() / values.sum())


# --- states and maps --------------------------------------------------------------------------------------------------


def test_phases():
    traces = traces_of(np.arange(20.0).reshape(2, 5, 2), encoding=2, steps=(5, 3))
    encoding, decoding, both = states_of(traces, "encoding"), states_of(traces, "decoding"), states_of(traces)
    assert encoding.time.tolist() == [0, 1, 0, 1] and encoding.example.tolist() == [0, 0, 1, 1]
    assert decoding.time.tolist() == [2, 3, 4, 2] and decoding.points[:, 0].tolist() == [4, 6, 8, 14]
    assert len(both.points) == 8 and np.isfinite(both.points).all()


def test_map_by_principal_components():
    rng = np.random.default_rng(0)
    plane = rng.normal(size=(3, 8, 2)) * [4, 1]
    tilted = plane @ np.linalg.qr(rng.normal(size=(6, 2)))[0].T + 7
    shown = pca_map(traces_of(tilted, encoding=8), "encoding")
    wanted = plane.reshape(-1, 2)
    distances = np.linalg.norm(wanted[:, None] - wanted, axis=-1)
    np.testing.assert_allclose(np.linalg.norm(shown.points[:, None] - shown.points, axis=-1), distances, atol=1e-9)
    assert shown.points[:, 0].std() > shown.points[:, 1].std()


def clusters(steps: int = 10) -> dict[str, np.ndarray]:
    """Steps that visit three far-apart places in turn."""
    rng = np.random.default_rng(0)
    places = 50 * np.eye(3, 8)[np.arange(steps) % 3]
    return traces_of(places + rng.normal(size=(6, steps, 8)), encoding=steps)


def test_tsne_keeps_clusters_apart():
    pytest.importorskip("sklearn")
    shown = tsne_map(clusters(), "encoding", perplexity=8, seed=3)
    places = shown.time % 3
    centres = np.stack([shown.points[places == i].mean(0) for i in range(3)])
    nearest = np.linalg.norm(shown.points[:, None] - centres, axis=-1).argmin(-1)
    np.testing.assert_array_equal(nearest, places)
    np.testing.assert_array_equal(tsne_map(clusters(), "encoding", perplexity=8, seed=3).points, shown.points)


def test_tsne_is_asked_as_the_paper_says(monkeypatch):
    asked = {}

    class TSNE:
        def __init__(self, **settings):
            asked.update(settings)

        def fit_transform(self, points):
            asked["shape"] = points.shape
            return points[:, :2]

    manifold = types.ModuleType("sklearn.manifold")
    manifold.TSNE = TSNE
    monkeypatch.setitem(sys.modules, "sklearn", types.ModuleType("sklearn"))
    monkeypatch.setitem(sys.modules, "sklearn.manifold", manifold)
    states = tsne_map(clusters(), "encoding", components=5)
    assert asked == {"perplexity": 50, "learning_rate": "auto", "init": "random", "random_state": 0, "shape": (60, 5)}
    assert states.points.shape == (60, 2)
    with pytest.raises(ValueError, match="perplexity is 60; it must be below the number of states, 60"):
        tsne_map(clusters(), "encoding", perplexity=60)


def test_tsne_without_scikit_learn(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    monkeypatch.setitem(sys.modules, "sklearn.manifold", None)
    with pytest.raises(ValueError, match=r"pip install 'lenmem\[plot\]'"):
        tsne_map(clusters(), "encoding")


def test_symbols_of_numbers():
    """Rows of length 2 and 1, read with a delay of one step: inputs, flag, answers."""
    inputs = np.array([[[0.5, 0], [-1, 0], [0, 1]], [[-1, 0], [0, 1], [9, 9]]])
    targets = np.array([[[-1, 0], [0.5, 0], [0, 1]], [[-1, 0], [0, 1], [9, 9]]])
    mask = np.array([[1, 1, 1], [1, 1, 0]], bool)
    batch = Batch(*map(jnp.asarray, (inputs, mask, targets, mask, mask)))
    decoding = np.arange(7) >= np.array([[3], [2]])
    valid = np.arange(7) < np.array([[6], [4]])
    # in: (-1, 0), (0, 1), (0.5, 0); out: (-1, 0), (0, 1), (0.5, 0)
    wanted = [[2, 0, 1, 0, 2, 1, -1], [0, 1, 0, 1, -1, -1, -1]]
    assert symbols_of({"decoding": decoding, "valid": valid}, batch).tolist() == wanted
    # With no delay the step that reads the flag answers already.
    decoding, valid = np.arange(7) >= np.array([[2], [1]]), np.arange(7) < np.array([[5], [3]])
    wanted = [[2, 0, 0, 2, 1, -1, -1], [0, 0, 1, -1, -1, -1, -1]]
    assert symbols_of({"decoding": decoding, "valid": valid}, batch).tolist() == wanted


def test_a_slot_that_is_not_scored_has_no_symbol():
    inputs, read = np.array([[3, 5, 0]]), np.ones((1, 3), bool)
    batch = Batch(*map(jnp.asarray, (inputs, read, inputs, read, np.array([[True, True, False]]))))
    traces = {"decoding": np.arange(6)[None] >= 3, "valid": np.ones((1, 6), bool)}
    assert symbols_of(traces, batch).tolist() == [[1, 2, 0, 0, 1, -1]]


def test_symbols_of_what_a_network_reads():
    """From a model's own traces: every encoding step has the number of the symbol it reads."""
    task = BinaryAdd()
    batch = jax.jit(lambda key: draw(task, key, jnp.array([4, 6]), 7))(jax.random.key(0))
    model = models.make("lstm", task.spec, hidden_size=4, embedding_size=4)
    params = jax.jit(model.init)(jax.random.key(0), *batch[:2], batch.target_mask)["params"]
    traces = collect(model, params, batch)
    symbols = symbols_of(traces, batch)
    read: dict[int, set[tuple[float, ...]]] = {}
    for row in range(2):
        for step in np.flatnonzero(traces["valid"][row] & ~traces["decoding"][row]):
            read.setdefault(symbols[row, step], set()).add(tuple(np.asarray(batch.inputs)[row, step].tolist()))
        answered = traces["valid"][row] & traces["decoding"][row]
        assert (symbols[row][answered] >= 0).sum() == batch.score_mask[row].sum()
    assert all(len(values) == 1 for values in read.values()) and len(read) > 2
    assert (symbols[~traces["valid"]] == -1).all()


@pytest.mark.parametrize(
    ("run", "message"),
    [
        (lambda traces: states_of(traces, "reading"), "phase is 'reading'; allowed are encoding, decoding"),
        (lambda traces: curvature({"valid": traces["valid"]}), "needs the trace 'decoding'; this model has valid"),
        (lambda traces: states_of(traces | {"valid": np.zeros((2, 5), bool)}), "no example has a step of the phase"),
    ],
)
def test_what_is_missing_is_named(run, message):
    with pytest.raises(ValueError, match=message):
        run(traces_of(np.zeros((2, 5, 1))))
