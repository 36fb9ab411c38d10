"""The texts that a network answers with, and their BLEU (Papineni et al. 2002), by the library `sacrebleu`."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from lenmem.evaluation.metrics import SEEDS, ApplyModel, seeds
from lenmem.tasks.base import Source, Split
from lenmem.types import PyTree


class TextAnswers(Protocol):
    """A task whose answers can be written as texts."""

    def source(self, split: Split, batch_size: int) -> Source: ...
    def texts(self, rows: list[list[int]]) -> list[str]:
        """Rows of answer ids, up to the end symbol, as texts."""
        ...


class Bleu(NamedTuple):
    """BLEU of a network's own answers."""

    scores: np.ndarray
    """float[S], 0 to 100; NaN for seeds whose parameters are not finite."""
    signature: str
    """How they were computed, in the words of `sacrebleu`."""


def answers(
    model: nn.Module, params: PyTree, task: TextAnswers, samples: int, *, split: Split = "test", batch_size: int = 64
) -> tuple[list[list[str]], list[str]]:
    """The greedy answers of every seed to the first `samples` examples of a split, and the right ones.

    `params` have a leading axis of seeds. Returns ([S] lists of texts, texts).
    """
    apply, source = ApplyModel(model), task.source(split, min(batch_size, samples))
    count, key = seeds(params), jax.random.key(0)

    @jax.jit
    def batch_answers(params: PyTree, number: jax.Array) -> tuple[jax.Array, jax.Array]:
        batch = source.batch(key, number)
        asked = batch.inputs, batch.input_mask, batch.target_mask
        outputs = jax.vmap(lambda params: apply(params, *asked), axis_name=SEEDS)(params)
        return jnp.argmax(outputs, axis=-1), batch.targets

    own: list[list[list[int]]] = [[] for _ in range(count)]
    right: list[list[int]] = []
    for number in range(-(-samples // min(batch_size, samples))):
        found, targets = jax.tree.map(np.asarray, batch_answers(params, jnp.asarray(number)))
        right += targets.tolist()
        for rows, of_seed in zip(own, found, strict=True):
            rows += of_seed.tolist()
    return [task.texts(rows[:samples]) for rows in own], task.texts(right[:samples])


def bleu(texts: list[list[str]], references: list[str]) -> Bleu:
    """BLEU of each seed's texts. Raises ValueError if `sacrebleu` is not installed."""
    try:
        import sacrebleu
    except ImportError:
        raise ValueError("BLEU needs: pip install 'lenmem[text]'") from None
    metric: Any = sacrebleu.BLEU()
    scores = [metric.corpus_score(of_seed, [references]).score for of_seed in texts]
    return Bleu(np.array(scores), str(metric.get_signature()))
