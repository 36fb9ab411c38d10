"""The Neural Data Router (Csordás, Irie & Schmidhuber, ICLR 2022, https://arxiv.org/abs/2110.07732).

A Transformer encoder that applies one layer `steps` times. A *copy gate* leaves a column unchanged until its operands
have been computed, and *geometric attention* finds the nearest match to the left or to the right, at any distance.
Trained on shallow expressions, it evaluates deeper ones.

Notation: h_i is the state of column i = 1 .. N, of width d. The equations are in `lenmem.nn.ndr` and `lenmem.nn.act`.
The class also covers the Transformers of tables 1-3, 5 and 6 (see its fields, and the names in `lenmem.models`).

Cost per step: O(N^2 d + N d (d + d_FF)), for every kind of attention.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from lenmem.fields import NonNegativeFloat, PositiveInt, UnitInterval
from lenmem.nn.act import AdaptiveSteps, Repeated
from lenmem.nn.attention import Layout
from lenmem.nn.dropout import dropped
from lenmem.nn.interfaces import FlatModel, require_spec, sequential
from lenmem.nn.linear import uniform
from lenmem.nn.ndr import ContentAttention, GatedLayer, GatedPositionAttention, GeometricAttention, Update
from lenmem.nn.positions import (
    ADDED,
    Numbered,
    PositionEncoding,
    PositionKind,
    PositionScores,
    PositionVectors,
    encoding_of,
)
from lenmem.nn.transformer import PostNormLayer
from lenmem.types import Dtype, PyTree

Kind = Literal["geometric", "absolute_relative", PositionKind]
EmbeddingInit = Literal["normal", "kaiming", "xavier"]


class DataFlowEncoder(Numbered):
    """An encoder that applies `depth`. It sets padded columns to zero, before and after.

    Traces `column` bool[B, N]: the real columns.
    """

    depth: nn.Module
    positions: PositionEncoding = "none"
    """Added to the states first, or passed to the attention."""
    position_dropout: float = 0.0
    """Dropout of states with positions, if positions are added."""
    causal: bool = False
    param_dtype: Dtype = jnp.float32

    @nn.compact
    def __call__(self, states: jax.Array, mask: jax.Array, *, deterministic: bool = True) -> jax.Array:
        """[B, N, d], bool[B, N] -> [B, N, d]."""
        states, at = (
            jnp.where(mask[..., None], states, 0),
            self.numbered(mask, self.positions, deterministic=deterministic),
        )
        if self.positions in ADDED:
            vectors = PositionVectors(
                self.positions, max_positions=self.max_positions, param_dtype=self.param_dtype, name="positions"
            )
            states = states + vectors(at, states.shape[2]).astype(states.dtype)
            states = dropped(states, self.position_dropout, deterministic=deterministic)
        self.sow("traces", "column", mask)
        return jnp.where(mask[..., None], self.depth(states, mask, at, deterministic=deterministic), 0)


class NDR(Numbered, FlatModel):
    """Neural Data Router, and the weight-shared Transformers of its paper."""

    hidden_size: PositiveInt = 256
    """d: width of the states and of the embedding."""
    steps: PositiveInt = 14
    """Number of times the layer is applied. It should exceed the depth of the deepest expression by a few."""
    test_steps: PositiveInt | None = None
    """Steps outside training; None: `steps`."""
    heads: PositiveInt = 1
    """Number of attention heads; must divide `hidden_size`."""
    feedforward_size: PositiveInt = 512
    """d_FF: hidden width of the feed-forward network that updates a column."""
    attention: Kind = "geometric"
    """`geometric`: attends to the nearest match. `relative`: relative positions of Transformer-XL. `absolute_relative`:
    a gated mixture of relative and absolute positions. `absolute`: sinusoidal positions, added to the embedding. Any
    other position encoding of `Transformer`: softmax attention with that encoding."""
    gated: bool = True
    """Whether the layer has a copy gate; otherwise it is a post-norm Transformer layer."""
    update: Update = "norm"
    """The last function in the update of a gated layer: `norm`, with geometric attention, or `tanh`, with the
    others."""
    gate_size: PositiveInt | None = None
    """Hidden width of the copy gate's network; None: d."""
    normalize: bool = False
    """Normalise the geometric weights of each target to sum 1. Other attention always does."""
    dropout: UnitInterval = 0.5
    """Dropout of attention outputs and of hidden units; without a gate also of the feed-forward outputs."""
    key_dropout: UnitInterval = 0.1
    """Dropout of attention keys, as in the published code. The paper describes it for queries."""
    gate_drop: UnitInterval = 0.1
    """Probability, in training, that a column is copied in a step regardless of its gate."""
    position_dropout: UnitInterval = 0.1
    """Dropout of the embedding if absolute positions are added to it."""
    embedding_init: EmbeddingInit = "normal"
    """Initial standard deviation of the embedding: 1, sqrt(2 / d), or sqrt(2 / (symbols + d)) (`xavier`)."""
    halting: Literal["none", "graves", "dehghani"] = "none"
    """Adaptive computation time: each column halts separately, by Graves' or the Universal Transformer's rule."""
    ponder_penalty: NonNegativeFloat = 0.03
    """Weight of the halting remainders in the loss."""
    published_penalty: bool = False
    """Average the remainders over all columns of a batch, including padding up to its longest row, as in the published
    code. False: average over the real columns of each row."""
    column: Literal["last", "first"] = "last"
    """Whether a single answer is read at the end token or at the begin token."""
    block_size: PositiveInt | None = None
    """Number of targets that geometric attention processes at a time, for long inputs; None: all."""
    tolerance: UnitInterval | None = None
    """Geometric attention stops when at most this probability is left; None: it processes all keys."""
    remat: bool = False
    """Recompute each step in the backward pass. Training then needs the memory of one step, and a third more time."""

    @property
    def embedding_std(self) -> float:
        """Initial standard deviation of the embedding table."""
        symbols = require_spec(self.spec, self).vocabulary + 2
        variance = {"normal": 1.0, "kaiming": 2 / self.hidden_size, "xavier": 2 / (symbols + self.hidden_size)}
        return variance[self.embedding_init] ** 0.5

    @property
    def encoding(self) -> PositionEncoding | None:
        """The position encoding of attention by content; None for other kinds of attention."""
        if self.attention in ("geometric", "relative", "absolute_relative"):
            return None
        return encoding_of(self.attention)

    @nn.nowrap
    def reader(self, *, answers: int, train: bool) -> nn.Module:
        if self.random_positions and self.encoding is None:
            raise ValueError(f"random_positions needs attention by content; attention is {self.attention!r}")
        if self.attention != "geometric" and not (self.block_size is None and self.tolerance is None):
            raise ValueError(f"block_size and tolerance are for geometric attention; attention is {self.attention!r}")
        causal = require_spec(self.spec, self).causal
        steps = self.steps if train else self.test_steps or self.steps
        layer = self.layer(causal)
        if self.halting == "none":
            depth: nn.Module = Repeated(layer, steps=steps, remat=self.remat, parent=None)
        else:
            adaptive: dict[str, Any] = {"penalty": self.ponder_penalty, "published_penalty": self.published_penalty}
            adaptive |= {"remat": self.remat, **self.dtypes, "parent": None}
            depth = AdaptiveSteps(layer, steps=steps, variant=self.halting, **adaptive)
        encoder = DataFlowEncoder(
            depth,
            positions=self.encoding or "none",
            position_dropout=self.position_dropout,
            causal=causal,
            **self.numbering,
            param_dtype=self.param_dtype,
            name="encoder",
        )
        return sequential(
            encoder, self, embedding_size=self.hidden_size, embedding_std=self.embedding_std, column=self.column
        )

    @nn.nowrap
    def layer(self, causal: bool) -> nn.Module:
        """The layer that all steps share."""
        shared = {"causal": causal, "key_dropout": self.key_dropout, **self.dtypes, "parent": None}
        shared: dict[str, Any] = {"features": self.hidden_size, "heads": self.heads, **shared}
        if self.attention == "geometric":
            blocks: dict[str, Any] = {"block_size": self.block_size, "tolerance": self.tolerance}
            attention: nn.Module = GeometricAttention(normalize=self.normalize, **blocks, **shared)
        elif self.encoding is not None:
            attention = ContentAttention(encoding=self.scores(self.encoding, causal), **shared)
        else:
            start = uniform((3 / self.hidden_size) ** 0.5)
            scores = self.scores("relative", causal, kernel_init=start, dropout=self.key_dropout, flat=True)
            kind = GatedPositionAttention if self.attention == "absolute_relative" else ContentAttention
            layout = Layout(merge="merge", flat=True, joined=True)
            attention = kind(encoding=scores, learned_scale=True, layout=layout, **shared)
        options: dict[str, Any] = {"feedforward_size": self.feedforward_size, "dropout": self.dropout, **self.dtypes}
        if not self.gated:
            return PostNormLayer(attention=attention, initialization="glorot", **options, parent=None)
        gate: dict[str, Any] = {"gate_size": self.gate_size, "gate_drop": self.gate_drop, "update": self.update}
        return GatedLayer(attention, **gate, **options, parent=None)

    @nn.nowrap
    def scores(self, positions: PositionEncoding, causal: bool, **fields: Any) -> PositionScores:
        """The effect of positions on the logits of attention by content."""
        sizes = {"heads": self.heads, "features": self.hidden_size, "causal": causal}
        return PositionScores(positions, **sizes, **fields, **self.dtypes, parent=None)


def from_torch_state(mapping: Mapping[str, ArrayLike]) -> PyTree:
    """Converts the published layer's arrays to parameters of a `GatedLayer` with `GeometricAttention`.

    Torch's `weight[out, in]` is transposed. The published layout, and ours:

        att.data_to_q.weight            [(head, k), d]              attention/query/kernel [d, (head, k)]
        att.data_to_kv.weight           [(head, {key, value}, k), d] attention/key, attention/value
        att.data_to_qp.weight, bias     [(head, {left, right}), d]  attention/direction/kernel, bias
        att.global_content_bias         [head, k]                   attention/query_bias
        att.scale, scale_pos, s_bias    [1]                         attention/content_scale, direction_scale, offset
        att.multi_head_merge.weight     [d, (head, k)]              attention/merge/kernel
        nmerge, no                      weight, bias [d]            attention_norm, update_norm: scale, bias
        p1, p2, g1, g2                  weight [out, in], bias      feedforward_in, feedforward_out, gate_in, gate_out

    `att.pos_to_pq` is unused and left out. Raises ValueError with the missing names. The map is linear, so it also
    converts gradients to gradients.
    """
    wanted = {f"att.{name}" for name in ("scale", "scale_pos", "s_bias", "global_content_bias", "data_to_qp.bias")}
    wanted |= {f"att.{name}.weight" for name in ("data_to_q", "data_to_kv", "data_to_qp", "multi_head_merge")}
    wanted |= {f"{name}.{part}" for name in ("nmerge", "no", "p1", "p2", "g1", "g2") for part in ("weight", "bias")}
    if missing := sorted(wanted - set(mapping)):
        raise ValueError(f"these arrays of a published layer are missing: {', '.join(missing)}")
    state = {name: jnp.asarray(mapping[name]) for name in wanted}

    def kernel(name: str) -> dict[str, jax.Array]:
        return {"kernel": state[f"{name}.weight"].T}

    def linear(name: str) -> dict[str, jax.Array]:
        return {**kernel(name), "bias": state[f"{name}.bias"]}

    def norm(name: str) -> dict[str, jax.Array]:
        return {"scale": state[f"{name}.weight"], "bias": state[f"{name}.bias"]}

    heads, size = state["att.global_content_bias"].shape
    stacked = state["att.data_to_kv.weight"].reshape(heads, 2, size, -1)
    keys, values = (stacked[:, i].reshape(heads * size, -1).T for i in range(2))
    attention = {
        "query": kernel("att.data_to_q"),
        "key": {"kernel": keys},
        "value": {"kernel": values},
        "direction": linear("att.data_to_qp"),
        "query_bias": state["att.global_content_bias"],
        "content_scale": state["att.scale"].reshape(()),
        "direction_scale": state["att.scale_pos"].reshape(()),
        "offset": state["att.s_bias"].reshape(()),
        "merge": kernel("att.multi_head_merge"),
    }
    return {
        "attention": attention,
        "attention_norm": norm("nmerge"),
        "feedforward_in": linear("p1"),
        "feedforward_out": linear("p2"),
        "update_norm": norm("no"),
        "gate_in": linear("g1"),
        "gate_out": linear("g2"),
    }
