"""The Transformer decoder (Vaswani et al. 2017) and an encoder to go with it, after Csordas, Irie & Schmidhuber (2021).

Post-norm layers with ReLU. Positions are sinusoids added to the states, relative to each other as in Transformer-XL, or
not there at all; all layers may share their weights. Maps of attention have no biases, and dropout acts on its weights.
The first distributions are those of the published code, https://github.com/RobertCsordas/transformer_generalization.

A decoder answers slot by slot from a cache of keys and values, or all slots at once; the results are the same.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, NamedTuple, get_args

import flax.linen as nn
import jax
import jax.numpy as jnp

from lenmem.nn.linear import check_choices
from lenmem.nn.ndr import PostNormLayer, glorot, shifted
from lenmem.ops import masked_softmax, sinusoidal
from lenmem.types import Dtype, PyTree, Step

PositionKind = Literal["absolute", "relative", "none"]


class Entries(NamedTuple):
    """What `MemoryAttention` looks at: N entries."""

    keys: jax.Array
    """[B, N, heads, d_head]."""
    values: jax.Array
    """[B, N, heads, d_head]."""
    visible: jax.Array
    """bool[B or 1, Q or 1, N]: what each query may see."""
    offsets: jax.Array | None = None
    """[2N - 1, heads, d_head]: keys of the offsets 1 - N .. N - 1 from query to entry; None: places play no role."""
    place: jax.Array | None = None
    """The place of a single query among the entries; None: query i is at entry i."""


class MemoryAttention(nn.Module):
    """Attention with several heads, of which keys and values can be made beforehand.

        logit_ij = q_i . k_j / sqrt(d_head)
        with `relative` ((q_i + b_c) . k_j + (q_i + b_p) . W_p p_{j-i}) / sqrt(d_head)        (Dai et al. 2019)

    for each head; q, k and values are linear in the states, p are sinusoids. Softmax in float32. Maps start as
    Xavier's, and if `relative`, where the published code leaves them alone, as Torch's. Traces `attention`
    [B, heads, Q, N]. Cost O(Q N d).
    """

    features: int
    """d: width of queries and results."""
    heads: int
    relative: bool = False
    dropout: float = 0.0
    """Dropout of the weights."""
    dtype: Dtype = None
    param_dtype: Dtype = jnp.float32

    def setup(self):
        if self.features % self.heads:
            raise ValueError(f"{self.heads} heads do not divide a width of {self.features}")
        shape = self.heads, self.features // self.heads
        init = nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform") if self.relative else glorot()
        options: dict[str, Any] = {"use_bias": False, "kernel_init": init}
        options |= {"dtype": self.dtype, "param_dtype": self.param_dtype}
        self.query, self.key, self.value = (nn.DenseGeneral(shape, **options) for _ in range(3))
        self.merge = nn.DenseGeneral(self.features, axis=(-2, -1), **options)
        self.drop = nn.Dropout(self.dropout)
        if self.relative:
            self.position = nn.DenseGeneral(shape, **options)
            self.content_bias = self.param("content_bias", nn.initializers.zeros, shape, self.param_dtype)
            self.position_bias = self.param("position_bias", nn.initializers.zeros, shape, self.param_dtype)

    def entries(self, states: jax.Array, visible: jax.Array) -> Entries:
        """Of states [B, N, e]. A masked state has no effect as long as it is finite."""
        return Entries(self.key(states), self.value(states), visible, self.offsets(states.shape[1], states.dtype))

    def offsets(self, length: int, dtype: Any) -> jax.Array | None:
        """Keys of the offsets between any two of `length` places, [2 length - 1, heads, d_head], if `relative`."""
        if not self.relative:
            return None
        return self.position(sinusoidal(jnp.arange(1 - length, length), self.features).astype(dtype))

    def __call__(self, queries: jax.Array, entries: Entries) -> jax.Array:
        """[B, Q, d] -> [B, Q, d]; zeros where nothing may be seen."""
        query = self.query(queries)
        if entries.offsets is None:
            logits = jnp.einsum("bqhk,bnhk->bhqn", query, entries.keys)
        else:
            placed = query + self.position_bias.astype(query.dtype)
            scores = jnp.einsum("bqhk,ohk->bhqo", placed, entries.offsets)
            query = query + self.content_bias.astype(query.dtype)
            logits = jnp.einsum("bqhk,bnhk->bhqn", query, entries.keys) + _by_entry(scores, entries.place)
        logits = logits.astype(jnp.float32) * (self.features // self.heads) ** -0.5
        weights = masked_softmax(logits, entries.visible[:, None])
        self.sow("traces", "attention", weights)
        weights = self.drop(weights, deterministic=not self.has_rng("dropout"))
        return self.merge(jnp.einsum("bhqn,bnhk->bqhk", weights.astype(entries.values.dtype), entries.values))


def _by_entry(scores: jax.Array, place: jax.Array | None) -> jax.Array:
    """Scores by offset [..., Q, 2N - 1] to scores by entry [..., Q, N]."""
    if place is None:
        return shifted(scores)
    length = (scores.shape[-1] + 1) // 2
    return jax.lax.dynamic_slice_in_dim(scores, length - 1 - place, length, axis=-1)


class Placed(nn.Module):
    """What layers read: `input_scale` x + `position_scale` p with sinusoids p, then dropout; or `input_scale` x alone.

    The published code has this dropout for absolute positions only.
    """

    positions: PositionKind
    input_scale: float
    position_scale: float
    dropout: float

    @nn.compact
    def __call__(self, states: jax.Array, at: jax.Array) -> jax.Array:
        """[B, N, d] at places int[N] -> [B, N, d]."""
        check_choices(self, positions=get_args(PositionKind))
        states = self.input_scale * states
        if self.positions != "absolute":
            return states
        signal = self.position_scale * sinusoidal(at, states.shape[-1])
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
    """Factor of absolute positions."""
    dropout: float = 0.0
    """Dropout of weights, hidden units, of what attention and feed-forward network add, and of placed states."""
    dtype: Dtype = None
    param_dtype: Dtype = jnp.float32

    @nn.compact
    def __call__(self, states: jax.Array, mask: jax.Array) -> jax.Array:
        """[B, N, d], bool[B, N] -> [B, N, d]."""
        options: dict[str, Any] = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        length, width = states.shape[1:]
        place = Placed(self.positions, self.input_scale, self.position_scale, self.dropout, name="place")
        states = place(jnp.where(mask[..., None], states, 0), jnp.arange(length))
        stack = []
        for number in range(1 if self.shared_layers else self.layers):
            kind = self.heads, self.positions == "relative", self.dropout
            attention = MemoryAttention(width, *kind, **options, name=f"attention_{number}")
            layer = PostNormLayer(attention, self.feedforward_size, self.dropout, **options, name=f"layer_{number}")
            stack.append((attention, layer))
        for number in range(self.layers):
            attention, layer = stack[number % len(stack)]
            entries: PyTree = attention.entries(states, mask[:, None])
            states = layer(states, entries)
        return jnp.where(mask[..., None], states, 0)


class DecoderLayer(nn.Module):
    """a = LN(h + drop(Attention(h))), b = LN(a + drop(Attention(a, memory))), LN(b + drop(W_2 drop(relu(W_1 b)))).

    The second half is the encoder's layer, looking at the memory. Places in the memory play no role.
    """

    features: int
    heads: int
    feedforward_size: int
    relative: bool = False
    dropout: float = 0.0
    dtype: Dtype = None
    param_dtype: Dtype = jnp.float32

    def setup(self):
        options: dict[str, Any] = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        self.attention = MemoryAttention(self.features, self.heads, self.relative, self.dropout, **options)
        self.attention_norm = nn.LayerNorm(1e-5, **options)
        self.memory_attention = MemoryAttention(self.features, self.heads, False, self.dropout, **options)
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
    offsets: list[jax.Array | None]
    """Keys of the offsets between answer slots, likewise."""


class TransformerDecoder(nn.Module):
    """Layers over the answer slots so far and over the encoder's states: a decoder for `EncoderDecoder`.

    Its outputs are states of the width of what it reads, `hidden_size`. It can fill all slots at once, or one after the
    other, with the same result: a step then runs every layer once, over one slot, and looks at cached keys and values
    of the earlier ones. With M slots and N states a step costs O(layers (d (d + feedforward_size) + (N + M) d)).

    Without absolute positions nothing but what is read tells slots apart.
    """

    hidden_size: int = 128
    """d: width of what is read and of the outputs."""
    layers: int = 3
    heads: int = 8
    feedforward_size: int = 256
    positions: PositionKind = "absolute"
    """Of the answer slots. `relative`: in their attention to each other."""
    shared_layers: bool = False
    """One layer is applied `layers` times."""
    input_scale: float = 1.0
    """Factor of what is read."""
    position_scale: float = 1.0
    """Factor of absolute positions."""
    dropout: float = 0.0
    """Dropout of weights, hidden units, of what the parts of a layer add, and of what is read."""
    dtype: Dtype = None
    param_dtype: Dtype = jnp.float32

    needs_slots: ClassVar[bool] = True

    def setup(self):
        relative = self.positions == "relative"
        shape = self.hidden_size, self.heads, self.feedforward_size, relative, self.dropout
        options: dict[str, Any] = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        self.stack = [DecoderLayer(*shape, **options) for _ in range(1 if self.shared_layers else self.layers)]
        self.place = Placed(self.positions, self.input_scale, self.position_scale, self.dropout)

    @nn.nowrap
    def layer_of(self, number: int) -> tuple[int, DecoderLayer]:
        """The layer that is applied as the `number`-th, and its number among those with weights of their own."""
        index = number % len(self.stack)
        return index, self.stack[index]

    def memory_of(self, states: jax.Array, mask: jax.Array) -> list[Entries]:
        """Keys and values of the encoder's states, for each layer that has weights of its own."""
        states = jnp.where(mask[..., None], states, 0)
        return [layer.memory_attention.entries(states, mask[:, None]) for layer in self.stack]

    def start(self, states: jax.Array, mask: jax.Array, slots: int) -> tuple[Cache, Given]:
        """[B, N, e], bool[B, N], the number of answer slots -> (an empty cache, what all steps read)."""
        memory = self.memory_of(states, mask)
        rows, _, *shape = memory[0].keys.shape
        empty = [jnp.zeros((rows, slots, *shape), memory[0].keys.dtype) for _ in range(self.layers)]
        offsets = [layer.attention.offsets(slots, memory[0].keys.dtype) for layer in self.stack]
        return Cache(empty, list(empty), jnp.zeros((), jnp.int32)), Given(memory, offsets)

    def __call__(self, carry: Cache, step: Step, memory: Given) -> tuple[Cache, jax.Array]:
        """One answer slot: (new carry, [B, d])."""
        slot, all_keys, all_values = carry.slot, [], []
        states = self.place(self.checked(step.inputs)[:, None], slot[None])
        visible = (jnp.arange(carry.keys[0].shape[1]) <= slot)[None, None]
        for number in range(self.layers):
            index, layer = self.layer_of(number)
            keys, values = (
                jax.lax.dynamic_update_slice_in_dim(cache[number], new(states).astype(cache[number].dtype), slot, 1)
                for cache, new in ((carry.keys, layer.attention.key), (carry.values, layer.attention.value))
            )
            all_keys.append(keys)
            all_values.append(values)
            own = Entries(keys, values, visible, memory.offsets[index], slot)
            states = layer(states, own, memory.memory[index])
        return Cache(all_keys, all_values, slot + 1), states[:, 0]

    def decode_all(self, states: jax.Array, mask: jax.Array, reads: jax.Array, valid: jax.Array) -> jax.Array:
        """[B, N, e], bool[B, N], reads [B, M, d], bool[B, M] -> [B, M, d]. Slots that are not valid come last."""
        memory, slots = self.memory_of(states, mask), valid.shape[-1]
        states = self.place(self.checked(reads), jnp.arange(slots))
        visible = jnp.tril(jnp.ones((1, slots, slots), bool))
        for number in range(self.layers):
            index, layer = self.layer_of(number)
            states = layer(states, layer.attention.entries(states, visible), memory[index])
        return states

    @nn.nowrap
    def checked(self, reads: jax.Array) -> jax.Array:
        """`reads`, or a ValueError if they are not `hidden_size` wide."""
        if reads.shape[-1] != self.hidden_size:
            raise ValueError(f"a decoder of hidden_size {self.hidden_size} cannot read vectors of {reads.shape[-1]}")
        return reads
