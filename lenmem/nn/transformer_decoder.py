"""The Transformer decoder (Vaswani et al. 2017), which answers slot by slot with a cache of keys and values.

It can also process all slots at once, with the same results. Layers are initialised as in Csordás, Irie &
Schmidhuber (2021), https://github.com/RobertCsordas/transformer_generalization. Any position encoding can be used
(`lenmem.nn.positions`); encodings of pairs act in the self-attention of the answer.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from lenmem.nn.attention import Entries
from lenmem.nn.dropout import Dropout
from lenmem.nn.module import Part
from lenmem.nn.positions import AddPositions, Numbered, PositionEncoding, PositionKind, encoding_of
from lenmem.nn.transformer import PostNormLayer, glorot_attention
from lenmem.types import PyTree, Step


class DecoderLayer(Part):
    """a = LN(h + drop(Attention(h))), b = LN(a + drop(Attention(a, memory))), LN(b + drop(W_2 drop(relu(W_1 b)))).

    The second half is an encoder layer that attends to the memory. Positions in the memory have no effect.
    """

    features: int
    heads: int
    feedforward_size: int
    positions: PositionEncoding = "none"
    dropout: float = 0.0

    def setup(self):
        size = {"features": self.features, "heads": self.heads, "dropout": self.dropout, **self.dtypes}
        self.attention = glorot_attention(positions=self.positions, causal=True, **size)
        self.attention_norm = nn.LayerNorm(1e-5, **self.dtypes)
        self.memory_attention = glorot_attention(positions="none", **size)
        self.rest = PostNormLayer(
            attention=self.memory_attention,
            feedforward_size=self.feedforward_size,
            dropout=self.dropout,
            initialization="glorot",
            **self.dtypes,
        )
        self.drop = Dropout(self.dropout)

    def __call__(self, states: jax.Array, own: Entries, memory: PyTree, *, deterministic: bool = True) -> jax.Array:
        """[B, Q, d], the entries of the decoder, the entries of the memory -> [B, Q, d]."""
        attended = self.attention(states, own, deterministic=deterministic)
        attended = self.drop(attended, deterministic=deterministic)
        return self.rest(self.attention_norm(states + attended), memory, deterministic=deterministic)


class Cache(NamedTuple):
    """The carry of a decoder."""

    keys: list[jax.Array]
    """[B, M, heads, d_head] for each layer: the slots so far, then zeros."""
    values: list[jax.Array]
    """The same for values."""
    slot: jax.Array
    """The number of the next slot."""


class DecoderInputs(NamedTuple):
    """Constant inputs of all steps of a decoder."""

    memory: list[Entries]
    """Keys and values of the encoder's states, for each layer with its own weights."""
    positions: jax.Array
    """int[M] or int[B, M]: positions of the answer slots."""
    tables: list[jax.Array | None]
    """Keys of the offsets between the answer slots, if their positions are consecutive, for each layer with its own
    weights."""


class TransformerDecoder(Numbered, Part):
    """Layers over the answer slots so far and over the encoder's states: a decoder for `EncoderDecoder`.

    Inputs and outputs have the width `hidden_size`. The decoder can fill all slots at once, or one after another, with
    the same results. In the latter case, a step runs every layer on one slot, with the cached keys and values of the
    earlier slots. With M slots and N states a step costs O(layers (d (d + feedforward_size) + (N + M) d)).

    Without added positions, slots are distinguished only by their inputs. With 0 layers, the outputs are the inputs
    with their positions, for a network on top that reads the encoder's states itself.
    """

    hidden_size: int = 128
    """d: width of the inputs and outputs."""
    layers: int = 3
    heads: int = 8
    feedforward_size: int = 256
    positions: PositionKind = "absolute"
    """Positions of the answer slots: added to the inputs, or used in self-attention."""
    shared_layers: bool = False
    """Apply one layer `layers` times."""
    input_scale: float = 1.0
    """Factor of the inputs."""
    position_scale: float = 1.0
    """Factor of sinusoids."""
    dropout: float = 0.0
    """Dropout of attention weights, hidden units, layer outputs, and inputs."""

    needs_slots: ClassVar[bool] = True

    def setup(self):
        encoding = encoding_of(self.positions)
        shape: dict[str, Any] = {
            "features": self.hidden_size,
            "heads": self.heads,
            "feedforward_size": self.feedforward_size,
            "positions": encoding,
            "dropout": self.dropout,
        }
        count = min(self.layers, 1) if self.shared_layers else self.layers
        self.stack = [DecoderLayer(**shape, **self.dtypes) for _ in range(count)]
        scales = {"input_scale": self.input_scale, "position_scale": self.position_scale, "dropout": self.dropout}
        sizes = {"max_positions": self.max_positions, "param_dtype": self.param_dtype}
        self.place = AddPositions(encoding, **scales, **sizes)

    @nn.nowrap
    def layer_of(self, number: int) -> tuple[int, DecoderLayer]:
        """The layer that is applied as number `number`, and its index among the layers with their own weights."""
        index = number % len(self.stack)
        return index, self.stack[index]

    def slots_of(self, valid: jax.Array, *, deterministic: bool) -> jax.Array:
        """The positions of the answer slots bool[B, M]."""
        return self.numbered(valid, encoding_of(self.positions), deterministic=deterministic)

    def memory_of(self, states: jax.Array, mask: jax.Array) -> list[Entries]:
        """Keys and values of the encoder's states, for each layer with its own weights."""
        states = jnp.where(mask[..., None], states, 0)
        return [layer.memory_attention.entries(states, mask) for layer in self.stack]

    def start(
        self, states: jax.Array, mask: jax.Array, valid: jax.Array, *, deterministic: bool = True
    ) -> tuple[Cache, DecoderInputs]:
        """[B, N, e], bool[B, N], the answer slots bool[B, M] -> (an empty cache, the constant inputs of all steps)."""
        memory, slots = self.memory_of(states, mask), valid.shape[-1]
        of_layers = [memory[self.layer_of(number)[0]].keys for number in range(self.layers)]
        empty = [jnp.zeros((keys.shape[0], slots, *keys.shape[2:]), keys.dtype) for keys in of_layers]
        tables: list[jax.Array | None] = [None] * len(self.stack)
        if not self.random_positions:
            tables = [
                layer.attention.table(slots, own.keys.dtype) for layer, own in zip(self.stack, memory, strict=True)
            ]
        given = DecoderInputs(memory, self.slots_of(valid, deterministic=deterministic), tables)
        return Cache(empty, list(empty), jnp.zeros((), jnp.int32)), given

    def __call__(self, carry: Cache, step: Step, memory: DecoderInputs) -> tuple[Cache, jax.Array]:
        """One answer slot: (new carry, [B, d])."""
        slot, all_keys, all_values = carry.slot, [], []
        at = jax.lax.dynamic_slice_in_dim(memory.positions, slot, 1, axis=-1)
        states = self.place(self.checked(step.inputs)[:, None], at, deterministic=step.deterministic)
        visible = (jnp.arange(memory.positions.shape[-1]) <= slot)[None, None]
        for number in range(self.layers):
            index, layer = self.layer_of(number)
            new = layer.attention.entries(states, visible, deterministic=step.deterministic)
            keys, values = (
                jax.lax.dynamic_update_slice_in_dim(cache[number], added.astype(cache[number].dtype), slot, 1)
                for cache, added in ((carry.keys, new.keys), (carry.values, new.values))
            )
            all_keys.append(keys)
            all_values.append(values)
            own = Entries(keys, values, visible, memory.positions, at, memory.tables[index])
            states = layer(states, own, memory.memory[index], deterministic=step.deterministic)
        return Cache(all_keys, all_values, slot + 1), states[:, 0]

    def decode_all(
        self,
        states: jax.Array,
        mask: jax.Array,
        reads: jax.Array,
        valid: jax.Array,
        *,
        deterministic: bool = True,
    ) -> jax.Array:
        """[B, N, e], bool[B, N], inputs [B, M, d], valid bool[B, M] -> [B, M, d]. The valid slots are a prefix."""
        memory, at = self.memory_of(states, mask), self.slots_of(valid, deterministic=deterministic)
        states = self.place(self.checked(reads), at, deterministic=deterministic)
        everything = jnp.ones((1, valid.shape[-1]), bool)  # causal attention masks later slots itself
        for number in range(self.layers):
            index, layer = self.layer_of(number)
            own = layer.attention.entries(states, everything, at, deterministic=deterministic)
            states = layer(states, own, memory[index], deterministic=deterministic)
        return states

    @nn.nowrap
    def checked(self, reads: jax.Array) -> jax.Array:
        """`reads`. Raises ValueError unless they have width `hidden_size`."""
        if reads.shape[-1] != self.hidden_size:
            raise ValueError(f"a decoder of hidden_size {self.hidden_size} cannot read vectors of {reads.shape[-1]}")
        return reads
