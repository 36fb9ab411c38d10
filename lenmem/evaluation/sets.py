"""Scores of all examples of a split together, such as BLEU or the F1 of answers: `Task.set_scores` of a network."""

from __future__ import annotations

from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from lenmem import progress
from lenmem.evaluation.metrics import ApplyModel, seeds
from lenmem.seeds import over_seeds
from lenmem.tasks.base import Split, Task
from lenmem.types import PyTree


class SetScores(NamedTuple):
    """A score of every seed."""

    values: np.ndarray
    """float[S], 1 at best; NaN for seeds whose parameters are not finite."""
    told: str
    """A description of how they were computed."""


def set_scores(
    model: nn.Module, params: PyTree, task: Task, samples: int, *, split: Split = "test", batch_size: int = 64
) -> dict[str, SetScores]:
    """name -> the scores of the answers to the first `samples` examples of a split.

    `params` have a leading axis of seeds. Raises ValueError as `task.set_scores` does, and for `train`, whose examples
    have no fixed order.
    """
    answers = set_answers(model, params, task, samples, split=split, batch_size=batch_size)
    leaves = jax.tree.leaves(params)
    alive = [all(np.all(np.isfinite(leaf[seed])) for leaf in leaves) for seed in range(seeds(params))]
    found = [task.set_scores(of_seed, split) for of_seed in answers]
    return {
        name: SetScores(
            np.array([scores[name].value if living else np.nan for scores, living in zip(found, alive, strict=True)]),
            score.told,
        )
        for name, score in found[0].items()
    }


def set_answers(
    model: nn.Module, params: PyTree, task: Task, samples: int, *, split: Split = "test", batch_size: int = 64
) -> list[PyTree]:
    """For each seed `task.set_answers` to the first `samples` examples of a split, NumPy [samples, ...].

    ValueError for fewer than 1 sample, and for the split `train`.
    """
    if samples < 1 or batch_size < 1:
        raise ValueError(f"samples and batch_size must be at least 1, got {samples} and {batch_size}")
    if split == "train":
        raise ValueError("the examples of 'train' come in another order in each pass; score another split as a whole")
    apply, size = ApplyModel(model), min(batch_size, samples)
    source, key = task.source(split, size), jax.random.key(0)

    @jax.jit
    def of_batch(params: PyTree, number: jax.Array) -> PyTree:
        batch = source.batch(key, number)
        asked = batch.inputs, batch.input_mask, batch.target_mask
        return over_seeds(lambda params: task.set_answers(apply(params, *asked), batch))(params)

    count, parts = -(-samples // size), []
    with progress.track("answering") as at:
        for number in range(count):
            parts.append(jax.tree.map(np.asarray, of_batch(params, jnp.asarray(number))))
            at((number + 1) / count)
    whole = jax.tree.map(lambda *some: np.concatenate(some, axis=1)[:, :samples], *parts)
    return [jax.tree.map(lambda x, seed=seed: x[seed], whole) for seed in range(seeds(params))]
