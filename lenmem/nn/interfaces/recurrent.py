"""`Transducer`: a recurrent cell reads, then answers, in one scan."""

from __future__ import annotations

from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from lenmem.fields import NonNegativeInt
from lenmem.nn.cells import copied
from lenmem.nn.interfaces.packing import SPECIAL, Embedding, after_input, pack, require_spec, tokens_of
from lenmem.nn.linear import Linear
from lenmem.nn.module import Part, told
from lenmem.nn.recurrence import scan_cell
from lenmem.types import Spec, Step


class Transducer(Part):
    """A recurrent cell reads the input, then answers, in one scan.

    A row is `[begin? | inputs | delimiter? | blanks]`, packed without gaps, so lengths may differ inside a batch. In a
    row with n inputs, answer slot j is the cell's output at step `begin + n + delimiter - 1 + delay + j`. With
    `delay=0` the step that reads the delimiter gives the first answer (Yang & Rush 2017), with `delay=1` the next step
    (Graves et al. 2016). From the first answer on, `decoding` is True for the cell. Answers are never fed back.
    """

    cell: nn.Module
    spec: Spec | None = None
    embedding_size: int | None = 64
    """Width of the input embedding; None: one-hot inputs."""
    begin: bool = False
    """Read a begin symbol first."""
    blank: Literal["delimiter", "own"] = "delimiter"
    """The symbol read while answering: the delimiter again, or a separate one."""
    delay: NonNegativeInt = 0
    """Steps between the last symbol of the input and the first answer."""
    head: nn.Module | None = None
    """Maps the cell's outputs to `output_size` logits or values; None: a linear map."""

    @nn.nowrap
    def supports(self, spec: Spec) -> str | None:
        """None, or the reason why this model cannot take the task."""
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
        """int[B, N] or float[B, N, D], bool[B, N], bool[B, M] -> float[B, M, K]."""
        spec = require_spec(self.spec, self, inputs, input_mask, target_mask, targets)
        lengths = jnp.sum(input_mask, axis=-1)
        packed = pack(
            inputs,
            lengths,
            jnp.sum(target_mask, axis=-1),
            answers=target_mask.shape[-1],
            spec=spec,
            begin=self.begin,
            delay=self.delay,
            own_blank=self.blank == "own",
        )
        embed = Embedding(spec, features=self.embedding_size, special=SPECIAL, **self.dtypes, name="embedding")
        steps = Step(embed(packed.symbols), packed.decoding, packed.valid, not train)
        outputs = run_cell(self, steps, tokens_of(packed.symbols, spec), packed.reading_steps, lengths)

        def answers(stacked):
            """[T, B, ...] at each row's answer steps: [B, M, ...]."""
            return stacked[packed.answer_steps, jnp.arange(inputs.shape[0])[:, None]]

        head = self.head or Linear(spec.output_size, **self.dtypes, name="head")
        return head(jax.tree.map(answers, outputs))


def run_cell(interface: nn.Module, steps: Step, tokens: jax.Array, reading_steps: int, lengths: jax.Array) -> Any:
    """Scans `interface.cell` over batch-major steps [B, T, ...]; returns its outputs, time-major. Sows the tokens
    read. `lengths` int[B]: the number of inputs of each row, with computation tokens. The cell is told the number
    without them."""
    cell = copied(interface.cell)  # pyright: ignore[reportAttributeAccessIssue]
    for name, value in (("token", tokens), ("decoding", steps.decoding), ("valid", steps.valid)):
        interface.sow("traces", name, value.T)
    given = lengths // (1 + interface.spec.computation_steps)  # pyright: ignore[reportAttributeAccessIssue]
    known = {"deterministic": steps.deterministic, "lengths": given, "columns": tokens.shape[1]}
    carry = told(cell.start, tokens.shape[:1], reading_steps, **known)
    time_major = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), steps)
    return scan_cell(cell, carry, time_major)[1]
