"""Pictures of a Lie-access memory in key space: its writes and reads."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.collections import PathCollection

from lenmem.evaluation import plots
from lenmem.evaluation.plots.lantm import memory_of


def traces(d: int, writes: int = 9, reads: int = 12, token: bool = True) -> dict[str, np.ndarray]:
    """Writes and reads of two examples; on the unit sphere for d = 3."""
    steps = writes + reads + 2
    walk = np.random.default_rng(d).normal(size=(2, 2, steps, d)).cumsum(axis=2)
    walk = walk / np.linalg.norm(walk, axis=-1, keepdims=True) if d == 3 else walk
    time = np.broadcast_to(np.arange(steps), (2, steps))
    found = {
        "write_head": walk[0],
        "read_head": walk[1],
        "write_strength": np.broadcast_to(np.linspace(0, 1, steps), (2, steps)),
        "decoding": time >= writes,
        "valid": time < writes + reads,
    }
    return found | ({"token": time} if token else {})


def is_png(path) -> bool:
    return path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("d", [1, 2, 3, 5])
@pytest.mark.parametrize(("writes", "reads"), [(9, 12), (1, 1), (2, 0)])
def test_memory(tmp_path, d, writes, reads):
    found = traces(d, writes, reads, token=writes > 1)
    figure = plots.plot_key_space(found, 1, tmp_path / "a.png")
    assert is_png(tmp_path / "a.png")
    if d == 2:
        np.testing.assert_allclose(figure.axes[0].collections[0].get_offsets(), found["write_head"][1, :writes])
    plots.plot_rows(found, 1, tmp_path / "b.png")
    assert is_png(tmp_path / "b.png")


def test_rows_are_keys_and_reads_on_their_principal_axis():
    """Up to its sign; each write in a row of its own, filled by its strength."""
    found = traces(2)
    keys, reads = found["write_head"][1, :9], found["read_head"][1, 9:21]
    points = np.concatenate([keys, reads])
    _, axes = np.linalg.eigh(np.cov(points.T))
    along = (points - points.mean(0)) @ axes[:, -1]
    (ax, *_) = plots.plot_rows(found, 1).axes
    (dots,) = [shown for shown in ax.collections if isinstance(shown, PathCollection)]
    places = np.asarray(dots.get_offsets())
    sign = 1 if np.dot(places[:, 0], along[:9]) > 0 else -1
    np.testing.assert_allclose(places[:, 0], sign * along[:9], atol=1e-6)
    np.testing.assert_array_equal(places[:, 1], np.arange(9))
    np.testing.assert_allclose(dots.get_array(), found["write_strength"][1, :9])
    path = ax.lines[1]
    np.testing.assert_allclose(path.get_xdata(), sign * along[9:], atol=1e-6)
    assert np.all(np.diff(path.get_ydata()) > 0) and path.get_ydata()[0] > 8, "below the writes, with time"


def test_coincident_keys(tmp_path):
    found = traces(2)
    found["write_head"] = found["read_head"] = np.zeros_like(found["write_head"])
    plots.plot_key_space(found, 0, tmp_path / "a.png")
    plots.plot_rows(found, 0, tmp_path / "b.png")


def test_tokens_are_annotated():
    found = traces(2)
    found["write_strength"] = np.where(np.arange(23) == 4, 0.01, np.ones((2, 23)))
    found["write_head"] = np.stack([np.arange(23.0) * 3, np.zeros(23)], axis=1)[None].repeat(2, axis=0)
    figure = plots.plot_key_space(found, 0, names=lambda token: f"${token}$")
    annotated = [text.get_text() for text in figure.axes[0].texts]
    assert annotated == [f"${i}$" for i in range(9) if i != 4]  # a write of no strength stores nothing


def test_no_writes():
    found = traces(2)
    found["decoding"] = np.ones_like(found["decoding"])
    for plot in (plots.plot_key_space, plots.plot_rows):
        with pytest.raises(ValueError, match="writes nothing"):
            plot(found, 0)


def traces_of_two():
    """Two examples: three writes and two reads, one write and three reads, then padding."""
    rng = np.random.default_rng(0)
    return {
        "write_head": rng.normal(size=(2, 6, 2)),
        "read_head": rng.normal(size=(2, 6, 2)),
        "write_strength": rng.random((2, 6)),
        "token": np.array([[8, 1, 2, 9, 10, 10], [8, 9, 10, 10, 10, 10]]),
        "decoding": np.array([[0, 0, 0, 1, 1, 0], [0, 1, 1, 1, 0, 0]], dtype=bool),
        "valid": np.array([[1, 1, 1, 1, 1, 0], [1, 1, 1, 1, 0, 0]], dtype=bool),
    }


def test_memory_of_an_example():
    traces = traces_of_two()
    for example, writes, reads in [(0, [0, 1, 2], [3, 4]), (1, [0], [1, 2, 3])]:
        memory = memory_of(traces, example)
        np.testing.assert_array_equal(memory.keys, traces["write_head"][example, writes])
        np.testing.assert_array_equal(memory.strengths, traces["write_strength"][example, writes])
        np.testing.assert_array_equal(memory.tokens, traces["token"][example, writes])
        np.testing.assert_array_equal(memory.reads, traces["read_head"][example, reads])


def test_memory_without_strengths_and_tokens():
    traces = traces_of_two()
    del traces["write_strength"], traces["token"]
    memory = memory_of(traces, 0)
    assert memory.tokens is None
    np.testing.assert_array_equal(memory.strengths, np.ones(3))


def test_no_such_memory():
    traces = traces_of_two()
    for example in (-1, 2):
        with pytest.raises(ValueError, match=f"between 0 and 1, got {example}"):
            memory_of(traces, example)
    del traces["write_head"]
    with pytest.raises(ValueError, match="needs the trace 'write_head'; this model has decoding, read_head"):
        memory_of(traces, 0)
