"""BERT that answers with a span of its input, alone and with PANM's controller (Le et al. 2024, section 3.4, Table 4).

Devlin, Chang, Lee & Toutanova, "BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding",
NAACL 2019, https://arxiv.org/abs/1810.04805: post-norm layers with GELU over the sum of piece, position and segment
embeddings. For SQuAD a linear map of the last states M [N, d] gives two logits for each column, of the first and the
last piece of the answer:

    l_t[n] = w_t . M[n] + b_t,  t = 1, 2                                                      BERT
    l_t[n] = w_t . M[n] + b_t + g_o([*p_t^a, *p_t^c, h_t^c]) . M[n] / sqrt(d)                  BERT + PANM

The paper says only that "PANM appends the Controller to BERT to predict the start and end". Here PANM's memory is M,
BERT's last states of question and context, in their order. The controller makes two steps, one for each end of the
answer, without an input z_t. The MLP g_o maps the output of each step to a query, whose dot product with the state of a
column is added to BERT's own logit for that column. Pointers start at the first and the last column; h_0^c is a linear
map of the last state. With the paper's sizes there are 112.3 million parameters, 108.9 in BERT and 3.4 in PANM; the
paper says "around 114 million" for both models. The equations of PANM are in `lenmem.nn.pointers`.

`weights` is a directory in Hugging Face's format, from which a training starts (`lenmem.models.hugging_face`).

Cost: O(layers (N^2 d + N d (d + feedforward_size))), and of PANM O(H (H + d) + N (H + d)) in two steps.
"""

from __future__ import annotations

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from lenmem.fields import NonNegativeInt, PositiveFloat, PositiveInt, UnitInterval
from lenmem.models import hugging_face
from lenmem.nn.attention import MultiHeadAttention
from lenmem.nn.dropout import dropped
from lenmem.nn.interfaces import FlatModel, require_spec
from lenmem.nn.linear import BERT_STD, Dense
from lenmem.nn.module import Part
from lenmem.nn.panm import PointerDecoder
from lenmem.nn.pointers import MLP
from lenmem.nn.positions import PositionKind
from lenmem.nn.recurrence import scan_cell
from lenmem.nn.transformer import PostNormLayer, TransformerEncoder
from lenmem.ops.pointers import Similarity
from lenmem.types import PyTree, Spec, Step

IMPOSSIBLE = -1e9
"""The logit of a padded column."""
gelu = functools.partial(nn.gelu, approximate=False)


class BertLayers(TransformerEncoder):
    """BERT's layers over embedded columns: LN(x + learned positions), then post-norm layers with GELU."""

    positions: PositionKind = "learned"
    epsilon: float = 1e-12
    """Added to the variance in LN."""

    @nn.nowrap
    def placed(self, states: jax.Array, at: jax.Array, *, deterministic: bool) -> jax.Array:
        """The input of the first layer."""
        states = states + self.vectors(at, states.shape[-1]).astype(states.dtype)
        states = nn.LayerNorm(self.epsilon, **self.dtypes, name="norm")(states)
        return dropped(states, self.dropout, deterministic=deterministic)

    @nn.nowrap
    def layer(self, width: int, number: int) -> nn.Module:
        """The layer with this number. Attention weights are dropped, hidden units are not."""
        start = nn.initializers.normal(BERT_STD)
        shared: dict[str, Any] = {"dropout": self.dropout, **self.dtypes}
        attention = MultiHeadAttention(features=width, heads=self.heads, kernel_init=start, **shared, parent=None)
        return PostNormLayer(
            attention=attention,
            feedforward_size=self.feedforward_size,
            activation=gelu,
            hidden_dropout=0.0,
            epsilon=self.epsilon,
            initialization="normal",
            **shared,
            name=f"layer_{number}",
        )


class Bert(Part):
    """BERT without a head: ids of pieces and segments to states."""

    vocabulary: int
    hidden_size: int = 768
    layers: int = 12
    heads: int = 12
    feedforward_size: int = 3072
    max_positions: int = 512
    segments: int = 2
    epsilon: float = 1e-12
    dropout: float = 0.1

    @nn.compact
    def __call__(
        self, ids: jax.Array, mask: jax.Array, segments: jax.Array, *, deterministic: bool = True
    ) -> jax.Array:
        """int[B, N], bool[B, N], int[B, N] -> [B, N, d], zero at padding."""
        table = functools.partial(nn.Embed, embedding_init=nn.initializers.normal(BERT_STD), **self.dtypes)
        states = table(self.vocabulary, self.hidden_size, name="pieces")(jnp.where(mask, ids, 0))
        states += table(self.segments, self.hidden_size, name="segments")(jnp.where(mask, segments, 0))
        encoder = BertLayers(
            layers=self.layers,
            heads=self.heads,
            feedforward_size=self.feedforward_size,
            max_positions=self.max_positions,
            epsilon=self.epsilon,
            dropout=self.dropout,
            **self.dtypes,
            name="encoder",
        )
        return encoder(states, mask, deterministic=deterministic)


class SpanHead(Part):
    """The logits of columns as ends of the answer: BERT's linear map, and PANM's controller if there are `pointers`."""

    pointers: nn.Module | None = None
    mlp_size: int | None = 128
    """Hidden width of g_o."""

    @nn.compact
    def __call__(self, states: jax.Array, mask: jax.Array, *, deterministic: bool = True) -> jax.Array:
        """M [B, N, d], bool[B, N] -> float32[B, 2, N]; `IMPOSSIBLE` at padding."""
        linear = Dense(2, kernel_init=nn.initializers.normal(BERT_STD), **self.dtypes, name="ends")
        logits = jnp.swapaxes(linear(states), 1, 2).astype(jnp.float32)
        if self.pointers is not None:
            width, ends = states.shape[-1], (2, mask.shape[0])
            carry, (memory, below) = self.pointers.start(states, mask, deterministic=deterministic)
            nothing, answering = jnp.zeros((*ends, 1), states.dtype), jnp.ones(ends, bool)
            steps = Step(nothing, answering, answering, deterministic)
            outputs = scan_cell(self.pointers, carry, steps, (memory, below))[1]
            queries = MLP(self.mlp_size, **self.dtypes, name="query")(outputs, width)
            logits += jnp.einsum("mbd,bnd->bmn", queries, states).astype(jnp.float32) / width**0.5
        return jnp.where(mask[:, None], logits, IMPOSSIBLE)


class BertSpans(FlatModel):
    """BERT, or BERT with PANM, for answers that are a span of the input. The default size is that of BERT-base."""

    hidden_size: PositiveInt = 768
    """d: width of the states and of the embeddings."""
    layers: PositiveInt = 12
    """Number of layers."""
    heads: PositiveInt = 12
    """Number of attention heads per layer; must divide `hidden_size`."""
    feedforward_size: PositiveInt = 3072
    """Hidden width of the feed-forward networks."""
    max_positions: PositiveInt = 512
    """Number of learned positions: no row may be longer."""
    segments: PositiveInt = 2
    """Number of segment embeddings. The second is that of what follows the task's separator."""
    epsilon: PositiveFloat = 1e-12
    """Added to the variance in layer norms."""
    dropout: UnitInterval = 0.1
    """Dropout of attention weights, layer outputs and embeddings."""
    weights: str | None = None
    """A directory with `config.json` and `model.safetensors`, whose parameters a training starts from. None: it starts
    from random ones. A trained network does not need it any more."""
    pointers: bool = False
    """Add PANM's controller."""
    pointer_size: PositiveInt = 256
    """H: width of pointer units and controller."""
    bits: PositiveInt = 10
    """b: bits of an address. There must be more addresses, 2^b, than columns."""
    address_heads: NonNegativeInt = 2
    """H_a: pointers that start at the first, the last and the middle column, in this order; 0 to 3."""
    content_heads: NonNegativeInt = 1
    """H_c: heads of Mode 2; 0 to 2."""
    attention: Similarity = "cosine_temperature"
    """Similarity of addresses and of contents, as in `PANM`."""
    mlp_size: PositiveInt | None = 128
    """Hidden width of the MLPs g_a, g_c and g_o; None: linear maps."""

    @nn.nowrap
    def supports(self, spec: Spec) -> str | None:
        """None, or the reason why this model cannot take the task."""
        if not (spec.answers_are_columns and spec.takes_tokens):
            return "it answers with a piece of its input; the task's answers are not columns of its input"
        if spec.shapes is not None and spec.shapes(1)[1] != 2:
            return f"an answer is two columns, its first and its last; the task has {spec.shapes(1)[1]} answer slots"
        return super().supports(spec)

    @nn.nowrap
    def pretrained(self) -> PyTree:
        """The parameters that a training starts from, a part of all; {} without `weights`. Raises ValueError, with the
        file and the tensor, if they cannot be read or do not fit."""
        if self.weights is None:
            return {}
        return {"bert": hugging_face.read(self.weights, self.body(parent=None))}

    @nn.nowrap
    def body(self, **place: Any) -> Bert:
        """BERT without the head."""
        sizes = {name: getattr(self, name) for name in SHARED}
        return Bert(require_spec(self.spec, self).vocabulary, **sizes, **self.dtypes, **place)

    @nn.nowrap
    def reader(self, *, answers: int, train: bool) -> nn.Module:
        spec = require_spec(self.spec, self)
        if answers != 2:
            raise ValueError(f"an answer is two columns, its first and its last; got {answers} answer slots")
        pointers = PointerDecoder(
            hidden_size=self.pointer_size,
            bits=self.bits,
            address_heads=self.address_heads,
            content_heads=self.content_heads,
            attention=self.attention,
            mlp_size=self.mlp_size,
            reads=False,
            **self.dtypes,
            name="pointers",
        )
        head = SpanHead(pointers if self.pointers else None, mlp_size=self.mlp_size, **self.dtypes, name="span")
        return Spans(body=self.body(name="bert"), head=head, spec=spec, **self.dtypes)


SHARED = ("hidden_size", "layers", "heads", "feedforward_size", "max_positions", "segments", "epsilon", "dropout")
"""Fields that `Bert` and `BertSpans` share."""


class Spans(Part):
    """BERT and its head, for pairs of sequences."""

    body: nn.Module
    head: nn.Module
    spec: Spec | None = None

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
        """int[B, N], bool[B, N], bool[B, 2] -> float32[B, 2, K] for K columns; those beyond N are impossible."""
        spec = require_spec(self.spec, self, inputs, input_mask, target_mask, targets)
        width = inputs.shape[1]
        if width > spec.output_size:
            raise ValueError(f"the rows have {width} columns, but answers only {spec.output_size}")
        ends = input_mask & (inputs == (-1 if spec.separator is None else spec.separator))
        segments = jnp.cumsum(ends, axis=-1) > ends.astype(jnp.int32)  # after the first separator
        states = self.body(inputs, input_mask, segments.astype(jnp.int32), deterministic=not train)
        logits = self.head(states, input_mask, deterministic=not train)
        return jnp.pad(logits, ((0, 0), (0, 0), (0, spec.output_size - width)), constant_values=IMPOSSIBLE)
