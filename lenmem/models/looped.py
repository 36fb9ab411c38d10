"""The looped Transformer: one block, applied as many times as the row has columns.

Fan et al., "Looped Transformers for Length Generalization", 2024 (arXiv 2409.15647). With x the embedded columns,
inputs and blank answer slots, and T the number of loops,

    h_0 = 0,  h_i = Block(h_{i-1} + x) for i = 1 .. T,  logits = W LN(h_T)

The block has causal attention and no position encodings; the order of the columns matters because a column sees only
those before it. The loss is that of the last loop. In the paper T is, for each task, a function of the length; here T
is the number of a row's columns, or a constant. Each row stops after its own T loops, so other rows and padding do not
affect it.

Cost: O(T ((N + M)^2 d + (N + M) d (d + feedforward_size))), with T of the longest row.
"""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp

from lenmem.fields import PositiveInt, UnitInterval
from lenmem.nn.attention import MultiHeadAttention
from lenmem.nn.interfaces import FlatModel, sequential
from lenmem.nn.module import Part
from lenmem.nn.recurrence import scan_cell, where_valid
from lenmem.nn.transformer import PreNormLayer
from lenmem.types import Spec, Step


class Loop(Part):
    """One loop, as a cell whose time is the number of the loop: the carry is (h, x, mask)."""

    heads: int = 4
    feedforward_size: int = 512
    dropout: float = 0.0

    @nn.compact
    def __call__(
        self, carry: tuple[jax.Array, jax.Array, jax.Array], step: Step
    ) -> tuple[tuple[jax.Array, jax.Array, jax.Array], tuple[()]]:
        """h becomes Block(h + x) in the rows that are not done."""
        states, inputs, mask = carry
        width, heads = states.shape[-1], self.heads
        attention = MultiHeadAttention(features=width, heads=heads, causal=True, **self.dtypes, parent=None)
        sizes = {"feedforward_size": self.feedforward_size, "dropout": self.dropout}
        block = PreNormLayer(attention=attention, **sizes, **self.dtypes, name="block")
        new = block(states + inputs, mask, deterministic=step.deterministic)
        return (where_valid(step.valid, new, states), inputs, mask), ()


class LoopedEncoder(Part):
    """All loops and a norm. An encoder (`lenmem.nn.interfaces`); fields as in `LoopedTransformer`."""

    heads: int = 4
    feedforward_size: int = 512
    loops: int | None = None
    dropout: float = 0.0

    @property
    def causal(self) -> bool:
        """Whether output t depends only on inputs 0 .. t: not if the number of loops is the length of the row."""
        return self.loops is not None

    @nn.compact
    def __call__(self, states: jax.Array, mask: jax.Array, *, deterministic: bool = True) -> jax.Array:
        """[B, N, d], bool[B, N] -> [B, N, d]."""
        inputs = jnp.where(mask[..., None], states, 0)
        wanted = jnp.sum(mask, axis=-1) if self.loops is None else jnp.full(mask.shape[:1], self.loops)
        numbers = jnp.arange(mask.shape[1] if self.loops is None else self.loops)
        valid = numbers[:, None] < wanted
        steps = Step(jnp.zeros((*valid.shape, 0)), jnp.zeros_like(valid), valid, deterministic)
        loop = Loop(
            heads=self.heads,
            feedforward_size=self.feedforward_size,
            dropout=self.dropout,
            **self.dtypes,
            name="loop",
        )
        (states, *_), _ = scan_cell(loop, (jnp.zeros_like(inputs), inputs, mask), steps)
        return jnp.where(mask[..., None], nn.LayerNorm(1e-6, **self.dtypes, name="norm")(states), 0)


class LoopedTransformer(FlatModel):
    """One causal Transformer block without positions, applied once for every column of a row."""

    hidden_size: PositiveInt = 128
    """d: width of the states and of the embedding."""
    heads: PositiveInt = 4
    """Number of attention heads; must divide `hidden_size`."""
    feedforward_size: PositiveInt = 512
    """Hidden width of the feed-forward network."""
    loops: PositiveInt | None = None
    """T: number of loops; None: a row's number of columns. No parameter depends on it."""
    dropout: UnitInterval = 0.1
    """Dropout of hidden units and of the outputs of attention and feed-forward network."""

    @nn.nowrap
    def supports(self, spec: Spec) -> str | None:
        """None, or the reason why this model cannot take the task."""
        if spec.causal and self.loops is None:
            return "the number of loops is the row's length, and the task is causal: set loops"
        return super().supports(spec)

    @nn.nowrap
    def reader(self, *, answers: int, train: bool) -> nn.Module:
        encoder = LoopedEncoder(
            heads=self.heads,
            feedforward_size=self.feedforward_size,
            loops=self.loops,
            dropout=self.dropout,
            **self.dtypes,
            name="encoder",
        )
        return sequential(encoder, self, embedding_size=self.hidden_size)
