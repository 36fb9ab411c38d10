"""The neural random-access machine (NRAM).

Kurach, Andrychowicz & Sutskever, "Neural Random-Access Machines", ICLR 2016 (arXiv 1511.06392). R registers and the
cells of a tape contain distributions over the integers 0 .. M - 1. At each step a controller connects registers and 14
fixed modules (arithmetic, comparisons, reading and writing the tape) to a circuit, whose outputs are the next
registers. The controller sees only the probability that each register is 0, so no parameter depends on M, and pointers
work in the same way at any length.

Notation: h controller output [B, H]; r registers [B, R, M]; tape [B, M, M]; wires: the registers, then the outputs of
the Q = 14 modules. Arithmetic is modulo the number of integers of a row. Cost per step: O(H (H + Q (R + Q)) + M^2).

In the paper, the input and the output of the machine are tapes. For pairs of sequences:

* Input, laid out like the paper's arrays, with a pointer first and 0 at the end: cell 0 contains the address of the
  first cell after the array; token k of the vocabulary at position i is the integer k + 1 in cell i + 1; other cells
  are 0. All registers start at 0. In aligned tasks, too, the machine starts when the complete input is on its tape.
* Output: after `delay` steps, each step fills one answer slot with the content of the last register. Class k is the
  integer k + 1; the end symbol, if a task has one, is 0. The logits are log P, as in the paper's cost. The number of
  slots is known, so there is no halting.
* A row of n inputs has as many integers as its tokens, classes and addresses need: max(V + 1, K + 1, n + 2). This does
  not depend on the other rows of the batch. `integers` sets one number for all rows instead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from lenmem.fields import NonNegativeInt, PositiveInt
from lenmem.nn.cells import as_cell
from lenmem.nn.controllers import Kind, cut, make_controller, make_interface
from lenmem.nn.interfaces import BLANK, FlatModel, place, require_spec
from lenmem.nn.module import Part
from lenmem.nn.recurrence import scan_cell
from lenmem.ops.registers import (
    integer_difference,
    integer_equal,
    integer_less,
    integer_less_or_equal,
    integer_maximum,
    integer_minimum,
    integer_shift,
    integer_sum,
    read_tape,
    write_tape,
)
from lenmem.types import PyTree, Spec, Step, check_batch

FLOOR = 1e-6
"""Keeps the logarithm of a probability finite."""


def constant(value: int) -> Callable[[jax.Array, jax.Array], jax.Array]:
    """A module without arguments: `value` with probability 1."""

    def module(tape: jax.Array, integers: jax.Array) -> jax.Array:
        return jnp.broadcast_to(jax.nn.one_hot(value, tape.shape[-1], dtype=tape.dtype), tape.shape[:-1])

    return module


MODULES: dict[str, tuple[int, Callable[..., jax.Array]]] = {
    "read": (1, lambda tape, integers, a: read_tape(tape, a)),
    "zero": (0, constant(0)),
    "one": (0, constant(1)),
    "two": (0, constant(2)),
    "inc": (1, lambda tape, integers, a: integer_shift(a, 1, integers)),
    "add": (2, lambda tape, integers, a, b: integer_sum(a, b, integers)),
    "sub": (2, lambda tape, integers, a, b: integer_difference(a, b, integers)),
    "dec": (1, lambda tape, integers, a: integer_shift(a, -1, integers)),
    "less": (2, lambda tape, integers, a, b: integer_less(a, b)),
    "less_or_equal": (2, lambda tape, integers, a, b: integer_less_or_equal(a, b)),
    "equal": (2, lambda tape, integers, a, b: integer_equal(a, b)),
    "min": (2, lambda tape, integers, a, b: integer_minimum(a, b)),
    "max": (2, lambda tape, integers, a, b: integer_maximum(a, b)),
    "write": (2, lambda tape, integers, a, b: constant(0)(tape, integers)),
}
"""name -> (number of arguments, function of (tape, number of integers, arguments)), in the order of the circuit."""


class NRAMState(NamedTuple):
    """The carry of an NRAM."""

    controller: PyTree
    registers: jax.Array
    """[B, R, M]."""
    tape: jax.Array
    """[B, M, M]."""
    integers: jax.Array
    """int[B]: number of integers of each row."""


class NRAMCell(Part):
    """One step of an NRAM; see `NRAM` for the fields. Its output is the last register."""

    controller: nn.Module
    """Any recurrent cell."""
    registers: int = 8

    def setup(self):
        shapes: dict[str, tuple[int, ...]] = {
            name: (arguments, self.registers + before) for before, (name, (arguments, _)) in enumerate(MODULES.items())
        }
        shapes["registers"] = (self.registers, self.registers + len(MODULES))
        self.command_shapes = shapes
        self.cell = as_cell(self.controller)
        self.interface = make_interface(shapes, **self.dtypes)

    def start(self, tape: jax.Array, integers: jax.Array) -> NRAMState:
        """The controller's initial state, all registers 0, and a tape [B, M, M] with `integers` int[B] integers."""
        zero = jax.nn.one_hot(0, tape.shape[-1], dtype=tape.dtype)
        registers = jnp.broadcast_to(zero, (len(tape), self.registers, tape.shape[-1]))
        return NRAMState(self.cell.start(tape.shape[:1], 0), registers, tape, integers)

    def __call__(self, state: NRAMState, step: Step) -> tuple[NRAMState, jax.Array]:
        """Applies the controller, then its circuit."""
        seen = state.registers[..., 0].astype(self.dtype or self.param_dtype)
        controller, hidden = self.cell(state.controller, step._replace(inputs=seen))
        commands = cut(self.interface(hidden).astype(jnp.float32), self.command_shapes)
        wiring = jax.tree.map(nn.softmax, commands)
        registers, tape = circuit(state.registers, state.tape, state.integers, wiring)
        self.sow("traces", "registers", registers)
        self.sow("traces", "register_sources", wiring["registers"])
        return NRAMState(controller, registers, tape, state.integers), registers[:, -1]


def circuit(
    registers: jax.Array, tape: jax.Array, integers: jax.Array, wiring: dict[str, jax.Array]
) -> tuple[jax.Array, jax.Array]:
    """Section 3.1: the modules in order, then the registers [B, R, M] and the tape [B, M, M] after the step.

    An argument of a module is a mean of the wires before it, and a new register is a mean of all wires, with the
    weights `wiring`. Registers and cells are normalised at the end: they are distributions, but a module multiplies the
    sums of its arguments, so that rounding errors would double at every step of `r <- add(r, r)`.
    """
    wires, written = registers, tape
    for name, (_, module) in MODULES.items():
        arguments = jnp.unstack(jnp.einsum("baw,bwm->abm", wiring[name], wires))
        if name == "write":
            written = write_tape(tape, *arguments)
        wires = jnp.concatenate([wires, module(tape, integers, *arguments)[:, None]], axis=1)
    registers = jnp.einsum("brw,bwm->brm", wiring["registers"], wires)
    return registers / registers.sum(-1, keepdims=True), written / written.sum(-1, keepdims=True)


class NRAM(FlatModel):
    """A neural random-access machine that starts with the input on its tape and fills one answer slot per step."""

    hidden_size: PositiveInt = 128
    """Width of the controller."""
    registers: PositiveInt = 8
    """R: number of registers."""
    controller: Kind = "lstm"
    """`lstm`; `peephole`: an LSTM that feeds back its cell state instead of its hidden state; `feedforward`: no
    state."""
    delay: NonNegativeInt = 1
    """Number of steps before the first answer."""
    integers: PositiveInt | None = None
    """M: number of integers of all rows; None: as many as each row needs. No parameter depends on it."""

    @nn.nowrap
    def supports(self, spec: Spec) -> str | None:
        """None, or the reason why this model cannot take the task."""
        if not spec.takes_tokens:
            return "a random-access machine computes with integers; the task's inputs are not plain tokens"
        if spec.outputs != "tokens":
            return f"a random-access machine answers with integers; the task's answers are {spec.outputs}"
        return "the machine starts when the whole input is on its tape; the task is causal" if spec.causal else None

    @nn.compact
    def __call__(self, inputs, input_mask, target_mask, *, targets=None, train: bool = False) -> jax.Array:
        """int[B, N], bool[B, N], bool[B, M] -> logits [B, M, K]."""
        spec = require_spec(self.spec, self)
        reason = self.supports(spec)
        if reason:
            raise ValueError(reason)
        check_batch(spec, inputs, input_mask, target_mask, targets)
        controller = make_controller(self.controller, self.hidden_size, **self.dtypes)
        cell = NRAMCell(controller, registers=self.registers, **self.dtypes, name="cell")

        # Valid at all steps up to a row's last answer.
        valid = jnp.pad(target_mask.T, [(self.delay, 0), (0, 0)], constant_values=True)
        decoding = jnp.broadcast_to((jnp.arange(len(valid)) >= self.delay)[:, None], valid.shape)
        steps = Step(jnp.zeros((*valid.shape, 0)), decoding, valid, not train)
        answers = scan_cell(cell, cell.start(*self.load(inputs, input_mask, spec)), steps)[1]
        answers = jnp.swapaxes(answers[self.delay :], 0, 1)
        classes = jnp.arange(spec.output_size)
        return jnp.log(answers[..., jnp.where(classes == spec.end_id, 0, classes + 1)] + FLOOR)

    @nn.nowrap
    def load(self, inputs: jax.Array, input_mask: jax.Array, spec: Spec) -> tuple[jax.Array, jax.Array]:
        """The tape [B, M, M] of each row, and its number of integers int[B]."""
        rows, capacity = inputs.shape
        lengths = jnp.sum(input_mask, axis=-1)
        values = max(spec.vocabulary, spec.output_size) + 1
        needed = max(values, capacity + 2)
        size = needed if self.integers is None else self.integers
        if size < needed:
            raise ValueError(
                f"integers is {size}; {capacity} inputs, {spec.vocabulary} ids and {spec.output_size} classes need at "
                f"least {needed}"
            )
        tokens = place(inputs, lengths, jnp.full((1, capacity), BLANK), spec) + 1
        cells = jnp.concatenate([lengths[:, None] + 1, jnp.where(input_mask, tokens, 0)], axis=1)
        tape = jax.nn.one_hot(jnp.pad(cells, [(0, 0), (0, size - capacity - 1)]), size, dtype=jnp.float32)
        each = jnp.maximum(values, lengths + 2) if self.integers is None else jnp.full((rows,), size)
        return tape, each
