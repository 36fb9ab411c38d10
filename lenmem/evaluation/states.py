"""A controller's states over time: the curvature of their paths, and maps of the states.

These are the analyses of Ofner & Kern (arXiv 2110.09138, sections IV-D and IV-E, supplement E), for any network with an
LSTM controller. They take the traces of a batch, as returned by `traces.collect`; the paper uses 64 examples of length
30:

    controller_state float[B, T, d]    the LSTM's cell state, before any compression
    valid, decoding bool[B, T]         the real steps of a row; the steps from the first answer on

A *phase* is `encoding` (a row's steps before its first answer) or `decoding`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

import numpy as np

from lenmem import progress
from lenmem.evaluation.traces import pca, require_traces
from lenmem.types import Batch

Phase = Literal["encoding", "decoding"]
PHASES: tuple[Phase, ...] = ("encoding", "decoding")


class States(NamedTuple):
    """The real states of a batch, one after the other: by example, then by time."""

    points: np.ndarray
    """float[n, d]: the states, or their coordinates in a map."""
    example: np.ndarray
    """int[n]: the row of each state."""
    time: np.ndarray
    """int[n]: the step of each state, from 0."""


def scored_by(metrics: Iterable[str]) -> str:
    """The paper's metric among those of a task: the hit rate (of `search`), otherwise the token accuracy."""
    return "hit_rate" if "hit_rate" in metrics else "token_accuracy"


def states_of(traces: Mapping[str, np.ndarray], phase: Phase | None = None) -> States:
    """The controller states of one phase of all examples, or of both phases.

    Raises ValueError if a trace is missing or the phase has no steps.
    """
    valid = steps_of(traces, phase)
    example, time = np.nonzero(valid)
    if not example.size:
        raise ValueError(f"no example has a step of the phase {phase or 'encoding or decoding'}")
    return States(np.asarray(trace_of(traces, "controller_state"), np.float64)[valid], example, time)


class Curvature(NamedTuple):
    """The deviation of the paths of a network's states from straight lines."""

    mean: float
    """Mean over all turns of all examples: 0 for straight lines, at most 2."""
    by_example: np.ndarray
    """float[B]: mean over the turns of each example; NaN for an example without turns."""
    explained: float
    """Fraction of the variance of the states that the principal components explain."""


def curvature(traces: Mapping[str, np.ndarray], *, components: int = 20) -> Curvature:
    """Mean change of direction of state trajectories, both phases together.

    The states c_t of all examples and steps are projected onto their first principal components. Then
    d_t = (c_{t+1} - c_t) / |c_{t+1} - c_t| and kappa_t = |d_{t+1} - d_t|, which is 2 sin(angle / 2) for a turn by this
    angle. A step without movement, up to float32 precision, has no direction, so its two turns are left out. Raises
    ValueError if no example has a turn.
    """
    states = states_of(traces)
    projected = pca(states.points, components)
    total = np.sum((states.points - states.points.mean(axis=0)) ** 2)
    shortest = 1e-6 * float(np.abs(projected).max())
    by_example = [_turns(projected[states.example == row], shortest) for row in range(len(traces["valid"]))]
    turns = np.concatenate(by_example)
    if not turns.size:
        raise ValueError("no turn to measure: no example has three steps between which its state moves")
    return Curvature(
        mean=float(turns.mean()),
        by_example=np.array([each.mean() if each.size else np.nan for each in by_example]),
        explained=float(np.sum(projected**2) / total),
    )


def _turns(path: np.ndarray, shortest: float) -> np.ndarray:
    """Changes of direction along a path float[T, k]: at most T - 2. Steps up to length `shortest` have none."""
    steps = np.diff(path, axis=0)
    lengths = np.linalg.norm(steps, axis=1, keepdims=True)
    directions = steps / np.where(lengths > shortest, lengths, np.nan)
    turns = np.linalg.norm(np.diff(directions, axis=0), axis=1)
    return turns[~np.isnan(turns)]


# Maps in the plane ----------------------------------------------------------------------------------------------------


def pca_map(traces: Mapping[str, np.ndarray], phase: Phase) -> States:
    """The states of a phase on their first two principal components."""
    states = states_of(traces, phase)
    return states._replace(points=pca(states.points, 2))


def tsne_map(
    traces: Mapping[str, np.ndarray],
    phase: Phase,
    *,
    components: int = 20,
    perplexity: float = 50.0,
    seed: int = 0,
) -> States:
    """The states of a phase, reduced to their principal components, in a t-SNE map (van der Maaten & Hinton 2008).

    Requires scikit-learn, from the extra `lenmem[plot]`, which the paper used, too; 2,000 states take about ten
    seconds. The settings are the published ones; in the paper's version of scikit-learn this includes random
    initialisation. The number of states must exceed `perplexity`.
    """
    try:
        from sklearn.manifold import TSNE  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise ValueError("t-SNE needs scikit-learn: pip install 'lenmem[plot]'. PCA does not") from None
    states = states_of(traces, phase)
    if len(states.points) <= perplexity:
        raise ValueError(f"perplexity is {perplexity}; it must be below the number of states, {len(states.points)}")
    embed = TSNE(perplexity=perplexity, learning_rate="auto", init="random", random_state=seed)
    with progress.track(f"t-SNE of {len(states.points)} states, {phase}"):
        points = np.asarray(embed.fit_transform(pca(states.points, components)), np.float64)
    return states._replace(points=points)


def symbols_of(traces: Mapping[str, np.ndarray], batch: Batch) -> np.ndarray:
    """int[B, T]: the symbol that each step read or, while decoding, its target; -1 if there is none.

    The different inputs of a batch are numbered from 0 in ascending order, and so are the different targets; the
    numbers of the two phases are unrelated. Only for interfaces without a begin symbol, in which step t reads input t.
    """
    decoding = np.asarray(trace_of(traces, "decoding"), bool)
    symbols = np.full(decoding.shape, -1)
    for phase, values, mask in (
        ("encoding", batch.inputs, batch.input_mask),
        ("decoding", batch.targets, batch.score_mask),
    ):
        steps, mask = steps_of(traces, phase), np.asarray(mask)
        values = np.asarray(values)
        numbers = np.full(mask.shape, -1)
        # Rounded, because equal values may have been computed in different ways.
        flat = np.round(values.reshape(*mask.shape, -1)[mask], 6)
        numbers[mask] = np.unique(flat, axis=0, return_inverse=True)[1].ravel()
        place = np.arange(decoding.shape[1]) - (np.argmax(decoding, axis=1)[:, None] if phase == "decoding" else 0)
        there = steps & (place < mask.shape[1])
        found = np.take_along_axis(numbers, np.clip(place, 0, mask.shape[1] - 1) * np.ones_like(symbols), axis=1)
        symbols = np.where(there, found, symbols)
    return symbols


def steps_of(traces: Mapping[str, np.ndarray], phase: str | None) -> np.ndarray:
    """bool[B, T]: the real steps of a phase, or of both."""
    valid, decoding = (np.asarray(trace_of(traces, name), bool) for name in ("valid", "decoding"))
    if phase is None:
        return valid
    if phase not in PHASES:
        raise ValueError(f"phase is {phase!r}; allowed are {', '.join(PHASES)}")
    return valid & (decoding if phase == "decoding" else ~decoding)


def trace_of(traces: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    """A trace. Raises ValueError if it is missing."""
    require_traces(traces, [name], "an analysis of states")
    return traces[name]
