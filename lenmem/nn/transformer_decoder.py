"""The Transformer decoder (Vaswani et al. 2017) and an encoder to go with it, after Csordás, Irie & Schmidhuber (2021).

Post-norm layers with ReLU. Positions are sinusoids added to the states, relative to each other as in Transformer-XL,
encoded in another way (`lenmem.nn.positions`), or not at all; those of pairs act where a sequence attends to itself.
All layers may share their weights. Maps of attention have no biases, and dropout acts on its weights.
The first distributions are those of the published code, https://github.com/RobertCsordas/transformer_generalization.

A decoder answers slot by slot from a cache of keys and values, or all slots at once; the results are the same.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from lenmem.nn.ndr import PostNormLayer, glorot
from lenmem.nn.positions import (
    ADDED,
    PositionEncoding,
    PositionKind,
    PositionScores,
    PositionVectors,
    encoding_of,
    numbered,
)
from lenmem.ops import masked_softmax
from lenmem.types import Dtype, PyTree, Step


class Entries(NamedTuple):
    """What `MemoryAttention` looks at: N entries."""

    keys: jax.Array
    """[B, N, heads, d_head]."""
    values: jax.Array
    """[B, N, heads, d_head]."""
    visible: jax.Array
    """bool[B or 1, Q or 1, N]: what each query may see."""
    positions: jax.Array | None = None
    """int[N] or int[B, N]: positions of the entries; None: they play no role."""
    at: jax.Array | None = None
    """int[Q] or int[B, Q]: those of the queries; None: query i is entry i."""
    table: jax.Array | None = None
    """[2N - 1, heads, d_head]: keys of the offsets between entries, if positions are relative."""


class MemoryAttention(nn.Module):
    """Attention with several heads, of which keys and values can be made beforehand.

        logit_ij = (q_i . k_j + s_ij) / sqrt(d_head)

    for each head; q, k and values are linear in the states, s and q are what `PositionScores` makes of positions.
    Softmax in float32. Maps start as Xavier's, and with relative positions, where the published code leaves them alone,
    as Torch's. Traces `attention` [B, heads, Q, N]. Cost O(Q N d).
    """

    features: int
    """d: width of queries and results."""
    heads: int
    positions: PositionEncoding = "none"
    dropout: float = 0.0
    """Dropout of the weights."""
    causal: bool = False
    """No entry is to the right of a query."""
    dtype: Dtype = None
    param_dtype: Dtype = jnp.float32

    def setup(self):
        if self.features % self.heads:
            raise ValueError(f"{self.heads} heads do not divide a width of {self.features}")
        shape = self.heads, self.features // self.heads
        relative = self.positions == "relative"
        init = nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform") if relative else glorot()
        kinds: dict[str, Any] = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        options: dict[str, Any] = {"use_bias": False, "kernel_init": init, **kinds}
        self.query, self.key, self.value = (nn.DenseGeneral(shape, **options) for _ in range(3))
        self.merge = nn.DenseGeneral(self.features, axis=(-2, -1), **options)
        self.drop = nn.Dropout(self.dropout)
        self.encoding = PositionScores(self.positions, self.heads, self.features, self.causal, init, **kinds)
        nn.share_scope(self, self.encoding)  # Its parameters are among those of this module.

    def entries(self, states: jax.Array, visible: jax.Array, positions: jax.Array | None = None) -> Entries:
        """Of states [B, N, e] at `positions`. A masked state has no effect as long as it is finite."""
        return Entries(self.key(states), self.value(states), visible, positions)

    def table(self, length: int, dtype: Any) -> jax.Array | None:
        """Keys of the offsets between any two of `length` entries, [2 length - 1, heads, d_head], if relative."""
        return self.encoding.table(length, dtype)

    def __call__(self, queries: jax.Array, entries: Entries) -> jax.Array:
        """[B, Q, d] -> [B, Q, d]; zeros where nothing may be seen."""
        query, key, scores, positions = self.query(queries), entries.keys, None, entries.positions
        if positions is not None:
            at = positions if entries.at is None else entries.at
            query, key, scores = self.encoding(query, key, at, positions, entries.table)
        logits = jnp.einsum("bqhk,bnhk->bhqn", query, key)
        if scores is not None:
            logits = logits + scores
        logits = logits.astype(jnp.float32) * (self.features // self.heads) ** -0.5
        weights = masked_softmax(logits, entries.visible[:, None])
        self.sow("traces", "attention", weights)
        weights = self.drop(weights, deterministic=not self.has_rng("dropout"))
        return self.merge(jnp.einsum("bhqn,bnhk->bqhk", weights.astype(entries.values.dtype), entries.values))


class Placed(nn.Module):
    """What layers read: `input_scale` x + p, then dropout, where positions p are added; or `input_scale` x alone.

    p are `position_scale` times sinusoids, or learned. The published code has this dropout for sinusoids only.
    """

    positions: PositionEncoding
    input_scale: float
    position_scale: float
    dropout: float
    max_positions: int = 2048
    param_dtype: Dtype = jnp.float32

    @nn.compact
    def __call__(self, states: jax.Array, at: jax.Array) -> jax.Array:
        """[B, N, d] at positions int[N] or int[B, N] -> [B, N, d]."""
        vectors = PositionVectors(self.positions, self.max_positions, self.param_dtype, name="positions")
        states, signal = self.input_scale * states, vectors(at, states.shape[-1])
        if self.positions not in ADDED:
            return states
        if self.positions == "sinusoidal":
            signal = self.position_scale * signal
        return nn.Dropout(self.dropout, deterministic=not self.has_rng("dropout"))(states + signal.astype(states.dtype))


class PostNormEncoder(nn.Module):
    """Layers a = LN(h + drop(Attention(h))), LN(a + drop(W_2 drop(relu(W_1 a)))). An encoder (`lenmem.nn.interfaces`).

    With `shared_layers` one layer is applied `layers` times. States at padding are zero. Cost
    O(layers (N^2 d + N d (d + feedforward_size))).
    """

    layers: int = 3
    heads: int = 8
    feedforward_size: int = 256
    positions: PositionKind = "absolute"
    shared_layers: bool = False
    input_scale: float = 1.0
    """Factor of the states that are read."""
    position_scale: float = 1.0
    """Factor of sinusoids."""
    dropout: float = 0.0
    """Dropout of weights, hidden units, of what attention and feed-forward network add, and of placed states."""
    max_positions: int = 2048
    """Longest input of learned or random positions."""
    random_positions: bool = False
    """See `lenmem.nn.positions.numbered`."""
    dtype: Dtype = None
    param_dtype: Dtype = jnp.float32

    @nn.compact
    def __call__(self, states: jax.Array, mask: jax.Array) -> jax.Array:
        """[B, N, d], bool[B, N] -> [B, N, d]."""
        options: dict[str, Any] = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        width, at, encoding = states.shape[-1], numbered(self, mask), encoding_of(self.positions)
        scales = self.input_scale, self.position_scale, self.dropout, self.max_positions, self.param_dtype
        states = Placed(encoding, *scales, name="place")(jnp.where(mask[..., None], states, 0), at)
        stack = []
        for number in range(1 if self.shared_layers else self.layers):
            kind = self.heads, encoding, self.dropout
            attention = MemoryAttention(width, *kind, **options, name=f"attention_{number}")
            layer = PostNormLayer(attention, self.feedforward_size, self.dropout, **options, name=f"layer_{number}")
            stack.append((attention, layer))
        for number in range(self.layers):
            attention, layer = stack[number % len(stack)]
            entries: PyTree = attention.entries(states, mask[:, None], at)
            states = layer(states, entries)
        return jnp.where(mask[..., None], states, 0)


class DecoderLayer(nn.Module):
    """a = LN(h + drop(Attention(h))), b = LN(a + drop(Attention(a, memory))), LN(b + drop(W_2 drop(relu(W_1 b)))).

    The second half is the encoder's layer, looking at the memory. Positions in the memory play no role.
    """

    features: int
    heads: int
    feedforward_size: int
    positions: PositionEncoding = "none"
    dropout: float = 0.0
    dtype: Dtype = None
    param_dtype: Dtype = jnp.float32

    def setup(self):
        options: dict[str, Any] = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        own: dict[str, Any] = {"causal": True, **options}
        self.attention = MemoryAttention(self.features, self.heads, self.positions, self.dropout, **own)
        self.attention_norm = nn.LayerNorm(1e-5, **options)
        self.memory_attention = MemoryAttention(self.features, self.heads, "none", self.dropout, **options)
        self.rest = PostNormLayer(self.memory_attention, self.feedforward_size, self.dropout, **options)
        self.drop = nn.Dropout(self.dropout)

    def __call__(self, states: jax.Array, own: Entries, memory: PyTree) -> jax.Array:
        """[B, Q, d], the decoder's own entries, those of the memory -> [B, Q, d]."""
        attended = self.drop(self.attention(states, own), deterministic=not self.has_rng("dropout"))
        return self.rest(self.attention_norm(states + attended), memory)


class Cache(NamedTuple):
    """The carry of a decoder."""

    keys: list[jax.Array]
    """[B, M, heads, d_head] for each layer: of the slots so far, then zeros."""
    values: list[jax.Array]
    """The same of values."""
    slot: jax.Array
    """The number of the next slot."""


class Given(NamedTuple):
    """What all steps of a decoder read."""

    memory: list[Entries]
    """The encoder's states, for each layer that has weights of its own."""
    positions: jax.Array
    """int[M] or int[B, M]: of the answer slots."""
    tables: list[jax.Array | None]
    """Keys of the offsets between them, if they are consecutive, for each layer that has weights of its own."""


class TransformerDecoder(nn.Module):
    """Layers over the answer slots so far and over the encoder's states: a decoder for `EncoderDecoder`.

    Its outputs are states of the width of what it reads, `hidden_size`. It can fill all slots at once, or one after the
    other, with the same result: a step then runs every layer once, over one slot, and looks at cached keys and values
    of the earlier ones. With M slots and N states a step costs O(layers (d (d + feedforward_size) + (N + M) d)).

    Without positions that are added nothing but what is read tells slots apart.
    """

    hidden_size: int = 128
    """d: width of what is read and of the outputs."""
    layers: int = 3
    heads: int = 8
    feedforward_size: int = 256
    positions: PositionKind = "absolute"
    """Of the answer slots: added to what is read, or in their attention to each other."""
    shared_layers: bool = False
    """One layer is applied `layers` times."""
    input_scale: float = 1.0
    """Factor of what is read."""
    position_scale: float = 1.0
    """Factor of sinusoids."""
    dropout: float = 0.0
    """Dropout of weights, hidden units, of what the parts of a layer add, and of what is read."""
    max_positions: int = 2048
    """Most slots of learned or random positions."""
    random_positions: bool = False
    """See `lenmem.nn.positions.numbered`."""
    dtype: Dtype = None
    param_dtype: Dtype = jnp.float32

    needs_slots: ClassVar[bool] = True

    def setup(self):
        encoding = encoding_of(self.positions)
        shape = self.hidden_size, self.heads, self.feedforward_size, encoding, self.dropout
        options: dict[str, Any] = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        self.stack = [DecoderLayer(*shape, **options) for _ in range(1 if self.shared_layers else self.layers)]
        scales = self.input_scale, self.position_scale, self.dropout, self.max_positions, self.param_dtype
        self.place = Placed(encoding, *scales)

    @nn.nowrap
    def layer_of(self, number: int) -> tuple[int, DecoderLayer]:
        """The layer that is applied as the `number`-th, and its number among those with weights of their own."""
        index = number % len(self.stack)
        return index, self.stack[index]

    def memory_of(self, states: jax.Array, mask: jax.Array) -> list[Entries]:
        """Keys and values of the encoder's states, for each layer that has weights of its own."""
        states = jnp.where(mask[..., None], states, 0)
        return [layer.memory_attention.entries(states, mask[:, None]) for layer in self.stack]

    def start(self, states: jax.Array, mask: jax.Array, valid: jax.Array) -> tuple[Cache, Given]:
        """[B, N, e], bool[B, N], the answer slots bool[B, M] -> (an empty cache, what all steps read)."""
        memory, slots = self.memory_of(states, mask), valid.shape[-1]
        rows, _, *shape = memory[0].keys.shape
        empty = [jnp.zeros((rows, slots, *shape), memory[0].keys.dtype) for _ in range(self.layers)]
        tables: list[jax.Array | None] = [None] * len(self.stack)
        if not self.random_positions:
            tables = [layer.attention.table(slots, memory[0].keys.dtype) for layer in self.stack]
        given = Given(memory, numbered(self, valid), tables)
        return Cache(empty, list(empty), jnp.zeros((), jnp.int32)), given

    def __call__(self, carry: Cache, step: Step, memory: Given) -> tuple[Cache, jax.Array]:
        """One answer slot: (new carry, [B, d])."""
        slot, all_keys, all_values = carry.slot, [], []
        at = jax.lax.dynamic_slice_in_dim(memory.positions, slot, 1, axis=-1)
        states = self.place(self.checked(step.inputs)[:, None], at)
        visible = (jnp.arange(carry.keys[0].shape[1]) <= slot)[None, None]
        for number in range(self.layers):
            index, layer = self.layer_of(number)
            keys, values = (
                jax.lax.dynamic_update_slice_in_dim(cache[number], new(states).astype(cache[number].dtype), slot, 1)
                for cache, new in ((carry.keys, layer.attention.key), (carry.values, layer.attention.value))
            )
            all_keys.append(keys)
            all_values.append(values)
            own = Entries(keys, values, visible, memory.positions, at, memory.tables[index])
            states = layer(states, own, memory.memory[index])
        return Cache(all_keys, all_values, slot + 1), states[:, 0]

    def decode_all(self, states: jax.Array, mask: jax.Array, reads: jax.Array, valid: jax.Array) -> jax.Array:
        """[B, N, e], bool[B, N], reads [B, M, d], bool[B, M] -> [B, M, d]. Slots that are not valid come last."""
        memory, slots, at = self.memory_of(states, mask), valid.shape[-1], numbered(self, valid)
        states = self.place(self.checked(reads), at)
        visible = jnp.tril(jnp.ones((1, slots, slots), bool))
        for number in range(self.layers):
            index, layer = self.layer_of(number)
            states = layer(states, layer.attention.entries(states, visible, at), memory[index])
        return states

    @nn.nowrap
    def checked(self, reads: jax.Array) -> jax.Array:
        """`reads`, or a ValueError if they are not `hidden_size` wide."""
        if reads.shape[-1] != self.hidden_size:
            raise ValueError(f"a decoder of hidden_size {self.hidden_size} cannot read vectors of {reads.shape[-1]}")
        return reads
