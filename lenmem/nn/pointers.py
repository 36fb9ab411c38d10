"""The heads of Pointer-Augmented Neural Memory (Le et al. 2024), and the memory that they read.

The paper, its notation and its variants are described in `lenmem.models.panm`. The modules built from these heads are
in `lenmem.nn.panm`. One step is

    h_t^a = GRU(p_{t-1}, h_{t-1}^a), h_0^a = 0          (1)    for each address head
    w_t^a[n] = softmax_n cos(h_t^a, g_a(A[n]))          (2)
    p_t = sum_n w_t^a[n] A[n]                           (3)    and *p_t^a = sum_n w_t^a[n] M[n]    (Mode 1)
    q_t = g_c([*p_t^a of all address heads])            (4)    for each content head
    w_t^c[n] = softmax_n cos(q_t, M[n])                 (5)
    *p_t^c = sum_n w_t^c[n] M[n]                        (6)                                        (Mode 2)
    h_t^c = GRU([*p_t^a, *p_t^c, z_t], h_{t-1}^c)       (7)
    output [*p_t^a, *p_t^c, h_t^c] of all heads, which the head of the interface, the MLP g_o, maps to the answer
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from lenmem.nn.attention import AdditiveAttention
from lenmem.nn.cells import GRUCell
from lenmem.nn.dropout import Dropout
from lenmem.nn.linear import Linear
from lenmem.nn.module import Part
from lenmem.ops.pointers import Similarity, address_bank, dereference, phase_bank, pointer_weights, sample_base
from lenmem.types import PyTree

Controller = Literal["gru", "attentive", "none"]
Unit = Literal["gru", "feedforward"]
Candidates = Literal["memory", "space"]
Code = Literal["bits", "signs", "phases"]
TestBase = Literal["zero", "random"]
TEMPERATURE = 10.0
"""The initial value of the learned temperature."""


class MLP(Part):
    """W_2 relu(W_1 x + b_1) + b_2, with `hidden` hidden units; None: a single linear map."""

    hidden: int | None = 128

    @nn.compact
    def __call__(self, inputs: jax.Array, features: int) -> jax.Array:
        """[..., d] -> [..., features]."""
        if self.hidden is not None:
            inputs = nn.relu(Linear(self.hidden, **self.dtypes, name="hidden")(inputs))
        return Linear(features, **self.dtypes, name="output")(inputs)


class Similar(Part):
    """Attention by `lenmem.ops.pointer_weights`, with its learned parameters.

    `cosine` has no parameters. `cosine_temperature`: beta is the softplus of a parameter, initially 10. `dot`: linear
    maps of query, keys and values, as in attention with one head.
    """

    kind: Similarity
    features: int
    """Width of the linear maps of `dot`."""

    def setup(self):
        if self.kind == "cosine_temperature":
            start = nn.initializers.constant(jnp.log(jnp.expm1(TEMPERATURE)))
            self.temperature = self.param("temperature", start, (), self.param_dtype)
        elif self.kind == "dot":
            self.of_query, self.of_key, self.of_value = (Linear(self.features, **self.dtypes) for _ in range(3))

    def keys(self, candidates: jax.Array) -> jax.Array:
        """[..., N, d] -> [..., N, d or features]."""
        return self.of_key(candidates) if self.kind == "dot" else candidates

    def __call__(self, query: jax.Array, keys: jax.Array, mask: jax.Array | None) -> jax.Array:
        """[B, d], [B, N, d] or [N, d], and bool[B, N] -> weights float32[B, N]."""
        query = self.of_query(query) if self.kind == "dot" else query
        temperature = nn.softplus(self.temperature) if self.kind == "cosine_temperature" else None
        return pointer_weights(query, keys, mask=mask, kind=self.kind, temperature=temperature)

    def read(self, values: jax.Array, weights: jax.Array) -> jax.Array:
        """The weighted mean [B, d or features] of values [B, N, d]. The linear map of `dot` is applied to the mean."""
        value = dereference(values, weights)
        return self.of_value(value) if self.kind == "dot" else value


class Slots(NamedTuple):
    """The slots of a memory, on the second to last axis; or a single slot, without that axis."""

    values: jax.Array
    """M, [B, N, d]."""
    address_keys: tuple[jax.Array, ...]
    """g_a(A) for each address head, [B, N, H]; [2^b, H] if pointers are means of all addresses."""
    content_keys: tuple[jax.Array, ...]
    """The keys that each content head compares with its query, [B, N, d]."""
    additive_keys: tuple[jax.Array, ...]
    """The keys of the controller's own attention, [B, N, H], if it has one."""


class PointerMemory(NamedTuple):
    """The memory of a step."""

    slots: Slots
    mask: jax.Array
    """bool[B, N]: the filled slots, a prefix."""
    base: jax.Array
    """p_B, int[B]."""
    holder: tuple[jax.Array, ...]
    """If pointers are means of all addresses: one-hot[B, 2^b, N], the slot that each address maps to."""


class HeadStep(NamedTuple):
    """The result of one address head's step."""

    hidden: jax.Array
    """h_t^a, [B, H]."""
    pointer: jax.Array
    """p_t, float32[B, b]."""
    weights: jax.Array
    """w_t^a over the slots, float32[B, N]."""
    address: jax.Array
    """The address with more than half of the weight, int[B]; -1 if there is none."""


class PointerState(NamedTuple):
    """The carry."""

    hidden: tuple[jax.Array, ...]
    """h^a of each address head, [B, H]."""
    pointers: tuple[jax.Array, ...]
    """p of each address head, float32[B, b]."""
    controller: jax.Array
    """h^c, [B, H]."""
    decoder: PyTree
    """The carry of the network whose output is z_t."""


class PointerUnits(Part):
    """Common fields and heads of `PointerDecoder` and `PointerCell`, with equations 1 to 7."""

    decoder: nn.Module | None = None
    """A network whose output is z_t: a decoder for `PointerDecoder`, a cell for `PointerCell`."""
    hidden_size: int = 256
    """H: width of pointer units and controller."""
    bits: int = 10
    """b: bits of an address."""
    address_heads: int = 2
    """H_a: pointers that start at the base, the end and the middle address, in this order."""
    content_heads: int = 1
    """H_c: heads of Mode 2."""
    attention: Similarity = "cosine_temperature"
    """The similarity of addresses and of contents."""
    mlp_size: int | None = 128
    """Hidden width of the MLPs g_a and g_c; None: linear maps."""
    controller: Controller = "gru"
    """`gru`: equation 7. `attentive`: it reads z_t, Mode-1 values and its own additive attention over M, which also
    enters the answer. `none`: there is no controller, and z_t, if there is one, replaces h_t^c."""
    pointer_unit: Unit = "gru"
    """`gru`: equation 1. `feedforward`: h_t^a is an MLP of p_{t-1} alone."""
    candidates: Candidates = "memory"
    """A pointer is a mean of the addresses of the memory's slots (`memory`), or of all 2^b addresses (`space`). With
    `space` the memory is repeated over all addresses, so that a wrong address gives a wrong value."""
    hard: bool = False
    """Round a pointer to the address of its largest weight, with the softmax's gradient (straight-through)."""
    address_code: Code = "bits"
    """Representation of addresses: bits 0 and 1, `signs` -1 and 1, or `phases` (`lenmem.ops.phase_bank`)."""
    test_base: TestBase = "zero"
    """p_B outside training: 0, or drawn with a constant key: once for each length, or once if answers are aligned."""
    dropout: float = 0.0
    """Dropout of the Mode-2 weights."""
    reads: bool = True
    """Without a `decoder`, z_t is the step's input. False: there is no z_t, except if there are no address heads."""

    def setup(self):
        if not 0 <= self.address_heads <= 3 or not 0 <= self.content_heads <= 2:
            got = f"got {self.address_heads} and {self.content_heads}"
            raise ValueError(f"address_heads is 0 to 3 (base, end, middle), content_heads 0 to 2; {got}")
        if self.address_heads == 0 and (self.content_heads or self.controller == "none"):
            raise ValueError("address_heads is 0: that needs content_heads=0, and a controller to answer from")

        def each(count: int, make: Any, *arguments: Any) -> list[Any]:
            return [make(*arguments, **self.dtypes) for _ in range(count)]

        unit = GRUCell if self.pointer_unit == "gru" else MLP
        self.units = each(self.address_heads, unit, self.hidden_size)
        self.address_maps = each(self.address_heads, MLP, self.mlp_size)
        self.address_attention = each(self.address_heads, Similar, self.attention, self.hidden_size)
        self.content_maps = each(self.content_heads, MLP, self.mlp_size)
        self.content_attention = each(self.content_heads, Similar, self.attention, self.hidden_size)
        self.drop = Dropout(self.dropout)
        if self.controller != "none":
            self.recurrence = GRUCell(self.hidden_size, **self.dtypes)
        if self.controller == "attentive":
            self.scorer = AdditiveAttention(self.hidden_size, **self.dtypes)

    def first_base(self, lengths: jax.Array, slots: int, *, deterministic: bool) -> jax.Array:
        """p_B, int[B]: drawn for each row in training. Raises ValueError unless there are more addresses than
        `slots`."""
        if slots >= 2**self.bits:
            raise ValueError(
                f"bits is {self.bits}: its {2**self.bits} addresses must outnumber the {slots} slots of the memory"
            )
        if not deterministic:
            return sample_base(self.make_rng("address"), self.bits, lengths.shape)
        if self.test_base == "zero":
            return jnp.zeros_like(lengths)
        return jax.vmap(lambda n: sample_base(jax.random.fold_in(jax.random.key(0), n), self.bits))(lengths)

    def bank(self, base: jax.Array, length: int) -> jax.Array:
        """A, float32[..., length, b], or 2 b numbers for phases."""
        if self.address_code == "phases":
            return phase_bank(base, length, self.bits)
        bank = address_bank(base, length, self.bits)
        return 2 * bank - 1 if self.address_code == "signs" else bank

    def all_addresses(self) -> jax.Array:
        """float32[2^b, b]."""
        return self.bank(jnp.zeros((), jnp.int32), 2**self.bits)

    def address_keys(self, addresses: jax.Array) -> tuple[jax.Array, ...]:
        """g_a(A) for each address head."""
        heads = zip(self.address_maps, self.address_attention, strict=True)
        return tuple(attention.keys(mapped(addresses, self.hidden_size)) for mapped, attention in heads)

    def fill(self, values: jax.Array, addresses: jax.Array) -> Slots:
        """Slots, or one slot, for M [..., d] and A [..., b], with all keys precomputed."""
        with_address_space = self.candidates == "space"
        return Slots(
            values,
            () if with_address_space else self.address_keys(addresses),
            tuple(attention.keys(values) for attention in self.content_attention),
            (self.scorer.keys(values),) if self.controller == "attentive" else (),
        )

    def places(self, memory: PointerMemory) -> tuple[jax.Array, ...]:
        """The addresses of the first, the last and the middle slot, float32[B, b] for each address head."""
        last = jnp.maximum(jnp.sum(memory.mask, axis=-1) - 1, 0)
        slots = (jnp.zeros_like(last), last, last // 2)[: self.address_heads]
        return tuple(self.bank(memory.base + slot, 1)[:, 0] for slot in slots)

    def advance_heads(
        self, state: PointerState, memory: PointerMemory, z: jax.Array | None, *, deterministic: bool
    ) -> tuple[PointerState, jax.Array]:
        """Equations 1 to 7: the new state, with `decoder` unchanged, and [*p_t^a, *p_t^c, h_t^c].

        An attentive controller adds what it read itself to the answer.
        """
        values = memory.slots.values
        moved = [self.move(head, state, memory) for head in range(self.address_heads)]
        reads = [self.address_attention[head].read(values, new.weights) for head, new in enumerate(moved)]
        options = {"deterministic": deterministic}
        related = [self.relate(head, reads, memory, **options) for head in range(self.content_heads)]
        seen = [attention.read(values, w) for attention, w in zip(self.content_attention, related, strict=True)]

        controller, answer = state.controller, [] if z is None else [z]
        if self.controller == "attentive":
            weights = self.scorer(controller, memory.slots.additive_keys[0], memory.mask)
            context = dereference(values, weights)
            controller = self.recurrence.update(controller, side_by_side(*answer, *reads, context))
            answer = [controller, context]
        elif self.controller == "gru":
            controller = self.recurrence.update(controller, side_by_side(*reads, *seen, *answer))
            answer = [controller]
        self.trace(moved, related)
        hidden, pointers = tuple(new.hidden for new in moved), tuple(new.pointer for new in moved)
        return PointerState(hidden, pointers, controller, state.decoder), side_by_side(*reads, *seen, *answer)

    def move(self, head: int, state: PointerState, memory: PointerMemory) -> HeadStep:
        """Equations 1 to 3 for one address head."""
        pointer, keys = state.pointers[head], memory.slots.address_keys[head]
        if self.pointer_unit == "gru":
            hidden = self.units[head].update(state.hidden[head], pointer)
        else:
            hidden = self.units[head](pointer, self.hidden_size).astype(state.hidden[head].dtype)
        with_address_space = self.candidates == "space"
        weights = self.address_attention[head](hidden, keys, None if with_address_space else memory.mask)
        if self.hard:
            largest = jax.nn.one_hot(jnp.argmax(weights, axis=-1), weights.shape[-1], dtype=weights.dtype)
            weights = weights + jax.lax.stop_gradient(largest - weights)
        if with_address_space:
            at = jnp.einsum("ba,ban->bn", weights, memory.holder[0])
            return HeadStep(
                hidden,
                dereference(self.all_addresses(), weights),
                at,
                sharp_at(weights, jnp.zeros_like(memory.base), 2**self.bits),
            )
        pointer = dereference(self.bank(memory.base, memory.mask.shape[-1]), weights)
        return HeadStep(hidden, pointer, weights, sharp_at(weights, memory.base, 2**self.bits))

    def relate(self, head: int, reads: list[jax.Array], memory: PointerMemory, *, deterministic: bool) -> jax.Array:
        """Equations 4 and 5 for one content head: w_t^c."""
        query = self.content_maps[head](side_by_side(*reads), memory.slots.values.shape[-1])
        weights = self.content_attention[head](query, memory.slots.content_keys[head], memory.mask)
        return self.drop(weights, deterministic=deterministic)

    def trace(self, moved: list[HeadStep], related: list[jax.Array]) -> None:
        """Sows pointer weights [B, H_a, N], their addresses int[B, H_a], and Mode-2 weights [B, H_c, N]."""
        if moved:
            self.sow("traces", "pointer_weights", jnp.stack([new.weights for new in moved], axis=1))
            self.sow("traces", "address", jnp.stack([new.address for new in moved], axis=1))
        if related:
            self.sow("traces", "relation_weights", jnp.stack(related, axis=1))

    def with_address_space(self, slots: Slots, mask: jax.Array, base: jax.Array) -> PointerMemory:
        """The memory; if pointers are means of all 2^b addresses, with their keys and the slots they map to."""
        if self.candidates == "memory":
            return PointerMemory(slots, mask, base, ())
        count = 2**self.bits
        length = jnp.maximum(jnp.sum(mask, axis=-1, keepdims=True), 1)
        holder = (jnp.arange(count) - base[:, None]) % count % length
        slots = slots._replace(address_keys=self.address_keys(self.all_addresses()))
        return PointerMemory(slots, mask, base, (jax.nn.one_hot(holder, mask.shape[-1]),))

    def initial_hidden(self, rows: int) -> tuple[jax.Array, ...]:
        """h_0^a = 0 for each address head."""
        return (jnp.zeros((rows, self.hidden_size), self.dtype or self.param_dtype),) * self.address_heads


def sharp_at(weights: jax.Array, base: jax.Array, addresses: int) -> jax.Array:
    """int[B]: the address (`base` + n) mod `addresses` whose weight in [B, N] exceeds one half; -1 if there is none."""
    at = (base + jnp.argmax(weights, axis=-1)) % addresses
    return jnp.where(jnp.max(weights, axis=-1) > 0.5, at, -1)


def side_by_side(*vectors: jax.Array) -> jax.Array:
    """Concatenates vectors [..., d_i]."""
    return jnp.concatenate(vectors, axis=-1)
