"""Recurrent encoder-decoder with additive attention.

Bahdanau, Cho & Bengio, "Neural Machine Translation by Jointly Learning to Align and Translate", ICLR 2015,
https://arxiv.org/abs/1409.0473. An encoder, by default bidirectional, turns the input into a memory of one state per
position. A decoder fills one answer slot per step, each time looking at a mean of the memory, weighted by a small
network of the decoder's state and each entry.

Cost: O(N H^2) for the encoder, O(M (H^2 + N H)) for the decoder.
"""

from __future__ import annotations

from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from lenmem.nn.attention import AttentionDecoder
from lenmem.nn.cells import GRUCell, LSTMCell
from lenmem.nn.encoders import Recurrent
from lenmem.nn.interfaces import EncoderDecoder, after_input
from lenmem.nn.linear import Init
from lenmem.types import Dtype, Spec


class Attention(nn.Module):
    """Recurrent encoder, and a recurrent decoder with additive attention."""

    hidden_size: int = 256
    """Cells of the decoder, and of each direction of the encoder."""
    embedding_size: int = 128
    """Width of the embeddings of inputs and fed-back answers."""
    cell: Literal["gru", "lstm"] = "gru"
    """The kind of all cells."""
    bidirectional: bool = True
    """The encoder reads in both directions."""
    feedback: Literal["open_loop", "teacher_forced"] = "open_loop"
    """What the decoder reads: nothing, or the answer so far (training: the target; else its own greedy answer)."""
    initialization: Init = "fan_in"
    """`fan_in`: Torch's default. `uniform`: all weights and biases of the cells U(-1, 1)."""
    spec: Spec | None = None
    dtype: Dtype = None
    param_dtype: Dtype = jnp.float32

    @nn.nowrap
    def supports(self, spec: Spec) -> str | None:
        """None, or why this model cannot take the task."""
        return after_input(spec)

    @nn.compact
    def __call__(
        self,
        inputs: jax.Array,
        input_mask: jax.Array,
        target_mask: jax.Array,
        *,
        targets: jax.Array | None = None,
        train: bool = False,
    ) -> jax.Array:
        """int[B, N] or float[B, N, D], bool[B, N], bool[B, M] -> logits or values [B, M, K]."""
        cells = {"gru": GRUCell, "lstm": LSTMCell}
        if self.cell not in cells:
            raise ValueError(f"cell is {self.cell!r}; allowed are {', '.join(map(repr, cells))}")
        options: dict[str, Any] = {"dtype": self.dtype, "param_dtype": self.param_dtype}

        def cell():
            return cells[self.cell](
                self.hidden_size, initialization=self.initialization, learned_start=False, parent=None, **options
            )

        reader = EncoderDecoder(
            Recurrent(cell(), self.bidirectional, name="encoder"),
            AttentionDecoder(cell(), self.hidden_size, **options, name="decoder"),
            self.spec,
            self.embedding_size,
            self.feedback,
            **options,
        )
        return reader(inputs, input_mask, target_mask, targets=targets, train=train)
