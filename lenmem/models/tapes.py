"""The tapes of a NAM Turing machine (`lenmem.models.namtm`), and the rules by which heads move over them.

Nam & Seo, "Neural Attention Memory", https://arxiv.org/abs/2302.09422, section 5.2.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp

from lenmem import ops
from lenmem.nn.recurrence import recomputed_scan


class Tapes(NamedTuple):
    """T and K, float32[B, P, d_t, L]; None for a tape that no transition reads."""

    values: jax.Array | None
    keys: jax.Array | None


class Controls(NamedTuple):
    """The commands of the controller and the input at one step (with a leading time axis: at all steps)."""

    value: jax.Array
    """v [B, P, d_t]."""
    key: jax.Array
    """k [B, P, d_t], a unit vector."""
    query: jax.Array
    """q_jump [B, P, d_t], a unit vector."""
    read_probability: jax.Array
    """p_r [B, P]."""
    write_probability: jax.Array
    """p_w [B, P]."""
    read_actions: jax.Array
    """Probabilities of the transitions of the read head [B, P, actions]."""
    write_actions: jax.Array
    """Probabilities of the transitions of the write head [B, P, actions]."""


@dataclasses.dataclass(frozen=True)
class Transition:
    """A rule by which a head may move. A new rule is a frozen dataclass: `NAMTM(rules=(Mine(),))`."""

    looks_at: ClassVar[tuple[Literal["values", "keys"], ...]] = ()
    """The tapes that the rule reads. Each adds a cost of O(d L) per step."""

    @property
    def reach(self) -> int:
        """Number of cells that it may move a head beyond the outermost cell visited so far."""
        return 0

    def __call__(self, head: jax.Array, tapes: Tapes, controls: Controls) -> jax.Array:
        """H [B, P, L], the tapes after this step's write -> the head after the move, [B, P, L]."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class Shift(Transition):
    """LEFT, NO-OP and RIGHT: roll the head by a number of cells."""

    cells: int = 1

    @property
    def reach(self) -> int:
        return abs(self.cells)

    def __call__(self, head: jax.Array, tapes: Tapes, controls: Controls) -> jax.Array:
        """The head, `cells` to the right."""
        return jnp.roll(head, self.cells, axis=-1)


@dataclasses.dataclass(frozen=True)
class Jump(Transition):
    """JUMP: H_jump = K'^T q_jump, the positions whose keys are similar to the query. It is not normalised."""

    looks_at: ClassVar[tuple[Literal["values", "keys"], ...]] = ("keys",)

    def __call__(self, head: jax.Array, tapes: Tapes, controls: Controls) -> jax.Array:
        """K' [B, P, d_t, L] and q [B, P, d_t] -> [B, P, L]."""
        assert tapes.keys is not None
        return jnp.einsum("...dl,...d->...l", tapes.keys, controls.query)


LEFT, NO_OP, RIGHT, JUMP = Shift(-1), Shift(0), Shift(1), Jump()


def run_heads(
    controls: Controls,
    mask: jax.Array,
    transitions: tuple[Transition, ...],
    start: jax.Array,
    tape: jax.Array,
    *,
    normalize: bool = False,
    published: bool = False,
    jumps: bool = False,
) -> tuple[jax.Array, jax.Array, jax.Array | None]:
    """The read and write heads used at each step, and with `jumps` H_jump: [B, P, N, L] each.

    `mask` bool[B, N]; `start` [L], the initial position of both heads; `tape`, the initial T. With `normalize` the
    heads are normalised for reads and writes, but not in the carry. With `published` the write head moves from the read
    head's position, as in the published code. H_jump is None if no transition reads keys.
    """
    looked_at = {name for transition in transitions for name in transition.looks_at}
    tapes = Tapes(tape if "values" in looked_at else None, jnp.zeros_like(tape) if "keys" in looked_at else None)
    head = jnp.broadcast_to(start, (*tape.shape[:2], *start.shape))

    def body(carry, xs):
        (read, write, tapes), (now, valid) = carry, xs
        used_read, used_write = (ops.unit(read), ops.unit(write)) if normalize else (read, write)
        gate = jnp.where(valid[:, None], now.write_probability, 0)
        tapes = Tapes(
            *(
                None if tape is None else ops.nam_write(tape, used_write, content, gate, gate)
                for tape, content in zip(tapes, (now.value, now.key), strict=True)
            )
        )

        def move(head, actions):
            moved = (p[..., None] * rule(head, tapes, now) for p, rule in zip(actions, transitions, strict=True))
            return jnp.where(valid[:, None, None], sum(moved), head)

        jump = JUMP(read, tapes, now) if jumps and tapes.keys is not None else None
        after = tuple(
            move(head, jnp.moveaxis(actions, -1, 0))
            for head, actions in ((read, now.read_actions), (read if published else write, now.write_actions))
        )
        return (*after, tapes), (used_read, used_write, jump)

    steps = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), (controls, mask))
    heads = recomputed_scan(body, (head, head, tapes), steps, mask.T)[1]
    return jax.tree.map(lambda x: jnp.moveaxis(x, 0, 2), heads)


def write_and_read(
    controls: Controls, mask: jax.Array, read: jax.Array, write: jax.Array, tape: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """T' = WR(T, H_w, v, p_w, p_w) and R = RD(T', H_r, p_r) of all steps at once: (R [B, N, P, d_t], the final T').

    `mask` bool[B, N], heads [B, P, N, L] as they are used, `tape` the initial T.
    """
    value, gate = jnp.swapaxes(controls.value, 1, 2), jnp.swapaxes(controls.write_probability, 1, 2)
    gate = jnp.where(mask[:, None, :], gate, 0)
    tape, reads = ops.nam_scan(write, value, gate, gate, queries=read, initial=tape)
    assert reads is not None
    return controls.read_probability[..., None] * jnp.swapaxes(reads, 1, 2), tape
