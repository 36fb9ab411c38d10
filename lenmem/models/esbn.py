"""The emergent symbol binding network (ESBN).

Webb, Sinha & Cohen, "Emergent Symbols through Binding in External Memory", ICLR 2021 (arXiv 2012.14601). A memory binds
each embedding of the input to a key that an LSTM writes. When an embedding occurs again, its key is retrieved. The LSTM
sees the retrieved keys and never an embedding, so it computes with its own symbols, and what it learns from some inputs
transfers to others.

Notation: z embedding [B, E], normalised over the sequence; h controller output [B, H]; k_w key written, k_r key read
with its confidence [B, K + 1]; g gate [B, 1]; memory of keys M_k [B, K, slots] and values M_v [B, E, slots]. A step is

    h = LSTM(k_r),  k_w = relu(W_w h),  g = sigmoid(W_g h),  d_i = <z, M_v[i]>
    w = softmax(d),  c_i = sigmoid(gain d_i + bias),  k_r = g sum_i w_i [M_k[i]; c_i],  then append (k_w, z)

and the first k_r is zero. Cost per step: O(H (H + K) + slots (K + E)).

The paper's network answers once, at a final step with z = 0. Here a row is `[inputs | zeros]`: after the inputs there
is one step for every answer slot, with z = 0, which appends nothing. In aligned tasks answer t is read at step t + 1,
the first one that sees the key retrieved for input t. Answers are functions of h alone, so they depend on the
embeddings only through their similarities.
"""

from __future__ import annotations

from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from lenmem import ops
from lenmem.fields import PositiveInt
from lenmem.nn.cells import LSTMCell
from lenmem.nn.interfaces import BLANK, SPECIAL, Embedding, FlatModel, place, require_spec
from lenmem.nn.interfaces.packing import tokens_of
from lenmem.nn.interfaces.recurrent import run_cell
from lenmem.nn.linear import Linear
from lenmem.nn.module import Part
from lenmem.nn.recurrence import AppendOnlyCell
from lenmem.types import Dtype, Spec, Step

EPSILON = 1e-8
"""Added to variances over a sequence, as in the published code."""


class Bindings(NamedTuple):
    """The memory, or one entry of it without the slot axis."""

    keys: jax.Array
    """M_k, [B, K, slots]."""
    values: jax.Array
    """M_v, [B, E, slots]."""


class ESBNState(NamedTuple):
    """The carry of an ESBN, without its memory."""

    controller: tuple[jax.Array, jax.Array]
    key: jax.Array
    """k_r, [B, K + 1]."""


class ESBNCell(AppendOnlyCell, Part):
    """One step of an ESBN; see `ESBN` for the fields. Its inputs are z, its output is h."""

    hidden_size: int = 512
    key_size: int = 256
    value_size: int = 128

    @property
    def initial_slots(self) -> int:
        """The memory is empty at first."""
        return 0

    def setup(self):
        self.controller = LSTMCell(self.hidden_size, learned_start=False, **self.dtypes)
        self.write_key = Linear(self.key_size, **self.dtypes)
        self.retrieve = Linear(1, **self.dtypes)
        self.gain = self.param("gain", nn.initializers.ones, (), self.param_dtype)
        self.bias = self.param("bias", nn.initializers.zeros, (), self.param_dtype)

    def start(self, batch_shape: tuple[int, ...], steps: int):
        """Zeros, and an empty memory."""

        def zeros(*shape):
            return jnp.zeros((*batch_shape, *shape))

        state = ESBNState(self.controller.start(batch_shape), zeros(self.key_size + 1))
        memory = Bindings(zeros(self.key_size, steps), zeros(self.value_size, steps))
        return state, memory, jnp.zeros(batch_shape, jnp.int32), jnp.zeros((), jnp.int32)

    def advance(self, state: ESBNState, memory: Bindings, filled: jax.Array, step: Step):
        """Algorithm 1: the controller, a retrieval, and the new binding."""
        controller = self.controller.update(state.controller, state.key.astype(self.dtype or self.param_dtype))
        hidden = controller[1]
        gate = nn.sigmoid(self.retrieve(hidden).astype(jnp.float32))
        value = step.inputs.astype(jnp.float32)
        likeness = jnp.einsum("...e,...et->...t", value, memory.values)
        weights = ops.masked_softmax(likeness, filled)
        confidences = nn.sigmoid(self.gain * likeness + self.bias)
        confidence = jnp.sum(weights * confidences, axis=-1, keepdims=True)
        key = jnp.einsum("...t,...kt->...k", weights, memory.keys)

        self.sow("traces", "retrieval_weights", weights)
        self.sow("traces", "confidence", confidence[..., 0])
        self.sow("traces", "gate", gate[..., 0])
        entry = Bindings(nn.relu(self.write_key(hidden).astype(jnp.float32)), value)
        return ESBNState(controller, gate * jnp.concatenate([key, confidence], axis=-1)), entry, hidden


class ContextNorm(nn.Module):
    """Normalises each feature over a row's real positions, then scales and shifts it; zeros at padding.

    The variance is the mean over the n positions, where the authors' code divides by n - 1.
    """

    param_dtype: Dtype = jnp.float32

    @nn.compact
    def __call__(self, states: jax.Array, mask: jax.Array) -> jax.Array:
        """[B, N, d], bool[B, N] -> [B, N, d]. The result for a single position is the shift."""
        scale = self.param("scale", nn.initializers.ones, states.shape[-1:], self.param_dtype)
        shift = self.param("shift", nn.initializers.zeros, states.shape[-1:], self.param_dtype)
        real = mask[..., None]

        def mean(x):
            count = jnp.sum(real, axis=1, keepdims=True, dtype=x.dtype)
            return jnp.sum(jnp.where(real, x, 0), axis=1, keepdims=True) / jnp.maximum(1, count)

        centred = states.astype(jnp.float32) - mean(states.astype(jnp.float32))
        normal = centred * jax.lax.rsqrt(mean(jnp.square(centred)) + EPSILON)
        return jnp.where(real, normal * scale + shift, 0).astype(states.dtype)


class ESBN(FlatModel):
    """An emergent symbol binding network that reads the input, then answers."""

    hidden_size: PositiveInt = 512
    """Number of cells of the LSTM."""
    key_size: PositiveInt = 256
    """K: width of a key, without its confidence."""
    embedding_size: PositiveInt = 128
    """E: width of the embedding z and of both layers of the embedding network."""
    context_norm: bool = True
    """Normalise embeddings over the sequence."""

    def setup(self):
        spec = require_spec(self.spec, self)
        self.embedding = Embedding(spec, features=self.embedding_size, special=SPECIAL, **self.dtypes)
        self.encoder = Linear(self.embedding_size, **self.dtypes)
        if self.context_norm:
            self.normalise = ContextNorm(self.param_dtype)
        self.cell = ESBNCell(
            hidden_size=self.hidden_size, key_size=self.key_size, value_size=self.embedding_size, **self.dtypes
        )
        self.head = Linear(spec.output_size, **self.dtypes)

    @nn.nowrap
    def supports(self, spec: Spec) -> str | None:
        """None, or the reason why this model cannot take the task."""
        return "answers come after the whole input is embedded; the task is causal" if spec.causal else None

    def __call__(self, inputs, input_mask, target_mask, *, targets=None, train: bool = False) -> jax.Array:
        """int[B, N] or float[B, N, D], bool[B, N], bool[B, M] -> logits or values [B, M, K]."""
        spec = require_spec(self.spec, self, inputs, input_mask, target_mask, targets)
        capacity, answers = inputs.shape[1], target_mask.shape[-1]
        lengths, answer_lengths = (jnp.sum(mask, axis=-1, keepdims=True) for mask in (input_mask, target_mask))
        first_answer = jnp.ones_like(lengths) if spec.alignment == "aligned" else lengths
        time = jnp.arange(capacity + answers)
        reading = time < lengths

        symbols = place(inputs, lengths[:, 0], jnp.full((1, len(time)), BLANK), spec)
        states = nn.relu(self.encoder(nn.relu(self.embedding(symbols))))
        states = self.normalise(states, reading) if self.context_norm else jnp.where(reading[..., None], states, 0)
        steps = Step(states, ~reading, time < first_answer + answer_lengths, not train)
        outputs = run_cell(self, steps, tokens_of(symbols, spec), capacity, lengths[:, 0])
        return self.head(outputs[first_answer + jnp.arange(answers), jnp.arange(len(inputs))[:, None]])
