"""Recurrent cells: LSTM, GRU, stacks of cells, and an adapter for Flax's cells.

The interface of cells is described in `lenmem.nn.recurrence`. Initial carries are learned vectors or zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.linen.dtypes import promote_dtype
from flax.linen.initializers import Initializer

from lenmem.nn.dropout import Dropout
from lenmem.nn.linear import Init, Linear, linear_init, uniform
from lenmem.nn.module import Part, told
from lenmem.types import PyTree, Step, at_least_float32


def lstm_update(gates: jax.Array, memory: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The pointwise half of an LSTM (Hochreiter & Schmidhuber 1997, with forget gates).

    gates [..., 4H] = (f, i, o, g): c' = sigmoid(f) c + sigmoid(i) tanh(g), h = sigmoid(o) tanh(c'). Returns (c', h), at
    least in float32.
    """
    forget, write, output, candidate = jnp.split(at_least_float32(gates), 4, axis=-1)
    memory = nn.sigmoid(forget) * memory + nn.sigmoid(write) * jnp.tanh(candidate)
    return memory, nn.sigmoid(output) * jnp.tanh(memory)


def gru_update(input_gates: jax.Array, hidden_gates: jax.Array, hidden: jax.Array) -> jax.Array:
    """The pointwise half of a GRU (Cho et al. 2014, with the reset gate applied after the linear map).

    input_gates, hidden_gates [..., 3H] = (r, z, n): h' = (1 - z) tanh(n_x + r n_h) + z h.
    """
    reset_x, update_x, new_x = jnp.split(input_gates, 3, axis=-1)
    reset_h, update_h, new_h = jnp.split(hidden_gates, 3, axis=-1)
    update = nn.sigmoid(update_x + update_h)
    return (1 - update) * jnp.tanh(new_x + nn.sigmoid(reset_x + reset_h) * new_h) + update * hidden


def start_vector(module: Part, name: str, size: int, *, learned: bool = True) -> jax.Array:
    """An initial state [size]: learned, initialised as U(-1, 1), or zeros."""
    dtype = module.param_dtype
    return module.param(name, uniform(1.0), (size,), dtype) if learned else jnp.zeros((size,), dtype)


class LSTMCell(Part):
    """One LSTM layer: gates = W [x; h] + b, then `lstm_update`. The carry is (c, h), each [B, hidden_size].

    The blocks of W for x and h are each initialised by `linear_init` with their own fan-in, and the biases with that of
    h. The forget gate's biases are `forget_bias` instead, unless this is None.
    """

    hidden_size: int
    forget_bias: float | None = 1.0
    initialization: Init = "fan_in"
    learned_start: bool = True

    def setup(self):
        self.start_memory = start_vector(self, "start_memory", self.hidden_size, learned=self.learned_start)
        self.start_hidden = start_vector(self, "start_hidden", self.hidden_size, learned=self.learned_start)

    def start(self, batch_shape: tuple[int, ...], steps: int = 0) -> tuple[jax.Array, jax.Array]:
        """(c, h), broadcast to the batch. In half precision c, a sum over time, is float32."""
        dtype = self.dtype or self.param_dtype
        memory, hidden = at_least_float32(self.start_memory.astype(dtype)), self.start_hidden.astype(dtype)
        shape = (*batch_shape, self.hidden_size)
        return jnp.broadcast_to(memory, shape), jnp.broadcast_to(hidden, shape)

    @nn.nowrap
    def initializers(self, width: int) -> tuple[Initializer, Initializer]:
        """Those of W for inputs of a width, and of b."""
        of_inputs, of_hidden = (linear_init(self.initialization, fan_in) for fan_in in (width, self.hidden_size))

        def kernel_init(key, shape, dtype):
            keys = jax.random.split(key)
            read = of_inputs(keys[0], (width, shape[1]), dtype)
            return jnp.concatenate([read, of_hidden(keys[1], (self.hidden_size, shape[1]), dtype)])

        return kernel_init, of_hidden

    @nn.compact
    def update(self, carry: tuple[jax.Array, jax.Array], inputs: jax.Array) -> tuple[jax.Array, jax.Array]:
        """One step on inputs [B, d]: the new (c, h)."""
        memory, hidden = carry
        width = inputs.shape[-1]
        kernel_init, drawn = self.initializers(width)

        def bias_init(key, shape, dtype):
            bias = drawn(key, shape, dtype)
            return bias if self.forget_bias is None else bias.at[: self.hidden_size].set(self.forget_bias)

        kernel = self.param("kernel", kernel_init, (width + self.hidden_size, 4 * self.hidden_size), self.param_dtype)
        bias = self.param("bias", bias_init, (4 * self.hidden_size,), self.param_dtype)
        inputs, hidden, kernel, bias = promote_dtype(inputs, hidden, kernel, bias, dtype=self.dtype)
        memory, new = lstm_update(jnp.concatenate([inputs, hidden], axis=-1) @ kernel + bias, memory)
        return memory, new.astype(hidden.dtype)

    def __call__(self, carry: tuple[jax.Array, jax.Array], step: Step) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        """(new carry, h [B, hidden_size])."""
        carry = self.update(carry, step.inputs)
        return carry, carry[1]


class GRUCell(Part):
    """One GRU layer: r, z, n from W_x x + b_x and W_h h + b_h, then `gru_update`. The carry is h [B, hidden_size]."""

    hidden_size: int
    initialization: Init = "fan_in"
    learned_start: bool = False

    def setup(self):
        self.start_hidden = start_vector(self, "start_hidden", self.hidden_size, learned=self.learned_start)

    def start(self, batch_shape: tuple[int, ...], steps: int = 0) -> jax.Array:
        """h, broadcast to the batch."""
        hidden = self.start_hidden.astype(self.dtype or self.param_dtype)
        return jnp.broadcast_to(hidden, (*batch_shape, self.hidden_size))

    @nn.compact
    def update(self, carry: jax.Array, inputs: jax.Array) -> jax.Array:
        """One step on inputs [B, d]: the new h."""
        options = {"initialization": self.initialization, **self.dtypes}
        input_gates = Linear(3 * self.hidden_size, **options, name="input")(inputs)
        hidden_gates = Linear(3 * self.hidden_size, **options, name="hidden")(carry)
        hidden = gru_update(*map(at_least_float32, (input_gates, hidden_gates, carry)))
        return hidden.astype(carry.dtype)

    def __call__(self, carry: jax.Array, step: Step) -> tuple[jax.Array, jax.Array]:
        """(h, h), [B, hidden_size]."""
        carry = self.update(carry, step.inputs)
        return carry, carry


class Stacked(nn.Module):
    """Stacked cells: each reads the outputs of the one below, with dropout between layers.

    Raises ValueError for cells with a `sequence_loss`, which would be left out.
    """

    cells: Sequence[nn.Module]
    dropout: float = 0.0

    def setup(self):
        self.stack = [as_cell(cell) for cell in self.cells]
        for cell in self.stack:
            if hasattr(cell, "sequence_loss"):
                raise ValueError(f"{type(cell).__name__} has a sequence_loss, so it cannot be stacked")

    def start(
        self,
        batch_shape: tuple[int, ...],
        steps: int = 0,
        *,
        deterministic: bool = True,
        lengths: jax.Array | None = None,
        columns: int | None = None,
    ) -> tuple[PyTree, ...]:
        """The carries of all layers. Each is told what it asks for (`lenmem.nn.recurrence`)."""
        known = {"deterministic": deterministic, "lengths": lengths, "columns": columns}
        known = {name: value for name, value in known.items() if value is not None}
        return tuple(told(layer.start, batch_shape, steps, **known) for layer in self.stack)

    @nn.compact
    def __call__(self, carry: tuple[PyTree, ...], step: Step) -> tuple[tuple[PyTree, ...], jax.Array]:
        """(new carries, output of the last layer)."""
        carries, output = [], step.inputs
        for layer, (cell, state) in enumerate(zip(self.stack, carry, strict=True)):
            if layer and self.dropout:
                output = Dropout(self.dropout, deterministic=step.deterministic)(output)
            state, output = cell(state, step._replace(inputs=output))
            carries.append(state)
        return tuple(carries), output


class FlaxCell(nn.Module):
    """Any `flax.linen.RNNCellBase` as a lenmem cell, starting from its own initial carry."""

    cell: nn.RNNCellBase

    def start(self, batch_shape: tuple[int, ...], steps: int = 0) -> Any:
        """Flax's `initialize_carry`. Its random key only matters to cells with a random initial state."""
        return self.cell.initialize_carry(jax.random.key(0), (*batch_shape, 1))

    def __call__(self, carry: Any, step: Step) -> tuple[Any, jax.Array]:
        """(new carry, output)."""
        return self.cell(carry, step.inputs)


def copied(cell: nn.Module) -> nn.Module:
    """`as_cell` with parameters of its own: a Flax cell that belongs to the caller is copied.

    `scan_cell` detaches a cell from its module, which loses parameters that the module has outside of the cell.
    """
    return cell if hasattr(cell, "start") else as_cell(cell.clone(parent=None, name=None))


def as_cell(cell: nn.Module) -> nn.Module:
    """`cell` itself, or a Flax RNN cell wrapped in `FlaxCell`. Raises ValueError for anything else."""
    if hasattr(cell, "start"):
        return cell
    if isinstance(cell, nn.RNNCellBase):
        return FlaxCell(cell)
    raise ValueError(
        f"{type(cell).__name__} is not a recurrent cell: a cell has start(batch_shape, steps) and "
        "__call__(carry, step), or is a flax.linen.RNNCellBase"
    )
