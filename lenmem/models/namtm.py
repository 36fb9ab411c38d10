"""NAM Turing machine (NAM-TM): memory matrices as tapes, with heads that move left, stay, move right or jump.

Nam & Seo, "Neural Attention Memory", https://arxiv.org/abs/2302.09422, section 5.2. A tape T = sum_i v_i e_i^T maps
positions e_i to values. A head is a vector over positions; reading and writing (`lenmem.models.nam`) with heads as keys
makes T a Turing tape. A second tape K stores a key at each position. Its transpose is a jump table: reading it with a
query moves the head to the position where a similar key was written. No parameter depends on the length of the tapes.

Notation: P tapes of width d_t = d / P, L positions, T and K [B, P, d_t, L], heads H_r and H_w [B, P, L], action
probabilities p_action for each head, gates p_r and p_w for each tape, v value, k unit key, q_jump unit query. One step:

    T' = WR(T, H_w, v, p_w, p_w)        R = RD(T', H_r, p_r)
    K' = WR(K, H_w, k, p_w, p_w)        H_jump = RD(K'^T, q_jump, 1)
    H' = p_left roll^-1(H) + p_noop H + p_right roll(H) + p_jump H_jump, for both heads

The paper's text lists the read of the tape before the write; here, as in the authors' code, R is read from T'.

All commands come from x and a controller that never sees the reads. Therefore only the heads and K are computed step by
step; the reads of all steps are then computed from the heads at once (`ops.nam_scan`). Cost: O(P L) per step for the
heads and O(d L) for K, which is left out if no transition needs it; O(N d L) for the reads.
"""

from __future__ import annotations

from typing import Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from lenmem import ops
from lenmem.fields import PositiveInt, UnitInterval
from lenmem.models.tapes import JUMP, LEFT, NO_OP, RIGHT, Controls, Transition, run_heads, write_and_read
from lenmem.nn.cells import GRUCell, LSTMCell
from lenmem.nn.dropout import dropped
from lenmem.nn.encoders import Recurrent
from lenmem.nn.interfaces import FlatModel, require_spec, sequential
from lenmem.nn.linear import Linear
from lenmem.nn.module import Part


class NAMTuringLayer(Part):
    """One NAM-TM layer over a sequence. It starts from a given tape (None: empty) and an empty key tape. See
    `NAMTM`."""

    tapes: int = 4
    transitions: tuple[Transition, ...] = (LEFT, NO_OP, RIGHT, JUMP)
    tape_length: int | None = None
    normalize_heads: bool = False
    controller: Literal["gru", "lstm"] = "gru"
    published_heads: bool = False
    causal: bool = False

    @nn.compact
    def __call__(
        self, states: jax.Array, mask: jax.Array, tape: jax.Array | None = None
    ) -> tuple[jax.Array, jax.Array]:
        """x [B, N, d], bool[B, N], T -> (a linear map of the reads [B, N, d], the T after the last step)."""
        (batch, length), width = mask.shape, states.shape[-1]
        controls = self.controls(states, mask)
        positions, origin = self.positions(length)
        if tape is None:
            tape = jnp.zeros((batch, self.tapes, width // self.tapes, positions))
        start = jax.nn.one_hot(origin, positions)
        read, write, jump = run_heads(
            controls,
            mask,
            self.transitions,
            start,
            tape,
            normalize=self.normalize_heads,
            published=self.published_heads,
            jumps=self.is_mutable_collection("traces"),
        )
        reads, tape = write_and_read(controls, mask, read, write, tape)
        for name, trace in (("read_position", read), ("write_position", write), ("jump_target", jump)):
            if trace is not None:
                self.sow("traces", name, jnp.swapaxes(trace, 1, 2))  # [B, N, P, L]
        for name in ("read_actions", "write_actions", "read_probability", "write_probability"):
            self.sow("traces", name, getattr(controls, name))
        reads = reads.reshape(states.shape).astype(states.dtype)
        return Linear(width, **self.dtypes, name="out")(reads), tape

    @nn.nowrap
    def positions(self, length: int) -> tuple[int, int]:
        """(L, the initial cell of the heads). By default the tape is so long that no head reaches its ends."""
        if self.tape_length is not None:
            if self.tape_length < 1:
                raise ValueError(f"tape_length is {self.tape_length}; allowed are None and lengths from 1 on")
            return self.tape_length, 0
        side = length * max(transition.reach for transition in self.transitions)
        return 2 * side + 1, side

    @nn.nowrap
    def controls(self, states: jax.Array, mask: jax.Array) -> Controls:
        """x [B, N, d] -> the commands of all steps: actions, gates and queries from a controller, v and k from x."""
        width = states.shape[-1]
        if width % self.tapes or (width % 2 and not self.causal):
            raise ValueError(f"{self.tapes} tapes, or two directions, do not divide a width of {width}")

        def per_tape(x, features, name):
            x = Linear(self.tapes * features, **self.dtypes, name=name)(x).astype(jnp.float32)
            return x.reshape(*mask.shape, self.tapes, features)

        cell = {"gru": GRUCell, "lstm": LSTMCell}[self.controller]
        size = width if self.causal else width // 2
        cell = cell(size, learned_start=False, **self.dtypes, parent=None)
        hidden = Recurrent(cell, bidirectional=not self.causal, name="controller")(states, mask)
        actions = len(self.transitions)
        commands = per_tape(hidden, 2 * actions + 2, "actions")
        gates = nn.sigmoid(commands[..., 2 * actions :])
        value = per_tape(states, width // self.tapes, "value")
        if any("keys" in transition.looks_at for transition in self.transitions):
            key, query = (per_tape(x, width // self.tapes, n) for x, n in ((states, "key"), (hidden, "query")))
        else:
            key = query = jnp.zeros_like(value)
        return Controls(
            value,
            ops.unit(key),
            ops.unit(query),
            gates[..., 0],
            gates[..., 1],
            nn.softmax(commands[..., :actions]),
            nn.softmax(commands[..., actions : 2 * actions]),
        )


class NAMTuringEncoder(Part):
    """Layers that all read LN(drop(Linear(x))); each starts from the final tape of the layer before.

    The output is relu(drop(LN(R))) for the reads R of the last layer.
    """

    layers: tuple[NAMTuringLayer, ...]
    input_dropout: float = 0.2
    dropout: float = 0.1

    @property
    def causal(self) -> bool:
        """Whether output t depends only on inputs 0 .. t: not with several layers, which pass on the final tape."""
        return len(self.layers) == 1 and self.layers[0].causal

    @nn.compact
    def __call__(self, states: jax.Array, mask: jax.Array, *, deterministic: bool = True) -> jax.Array:
        """[B, N, d], bool[B, N] -> [B, N, d]."""
        states = jnp.where(mask[..., None], states, 0)
        source = Linear(states.shape[-1], **self.dtypes, name="source")(states)
        source = dropped(source, self.input_dropout, deterministic=deterministic)
        source = jnp.where(mask[..., None], nn.LayerNorm(1e-5, **self.dtypes, name="source_norm")(source), 0)
        reads, tape = source, None
        for layer in self.layers:
            reads, tape = layer(source, mask, tape)
        reads = nn.LayerNorm(1e-5, **self.dtypes, name="norm")(reads)
        states = nn.relu(dropped(reads, self.dropout, deterministic=deterministic))
        return jnp.where(mask[..., None], states, 0)


class NAMTM(FlatModel):
    """NAM Turing machine with mask tokens for the answer.

    All layers read the input, and each starts from the final tape of the layer before. Only the last layer's reads are
    used. The controller is bidirectional, so each step can depend on the complete input. On causal tasks there is one
    layer, with a forward controller.

    The paper's size is `NAMTM(hidden_size=1024, tapes=8, tape_length=32)`: 19.1 M parameters; without JUMP
    `jump=False, controller="lstm"`: 18.0 M. Its tape of 32 cells is circular, and shorter than its inputs.
    """

    hidden_size: PositiveInt = 128
    """d: width of the states, of the embedding and of all tapes together."""
    tapes: PositiveInt = 4
    """P: number of tapes of a layer, each with a read head and a write head."""
    layers: PositiveInt = 2
    """Number of layers."""
    jump: bool = True
    """Heads may jump. False: only LEFT, NO-OP and RIGHT (the paper's ablation)."""
    rules: tuple[Transition, ...] = ()
    """Additional transitions."""
    tape_length: PositiveInt | None = None
    """L: length of the circular tapes, on which heads start at cell 0. None: long enough that no head wraps around, so
    the result is that of an infinite tape."""
    normalize_heads: bool = False
    """Read and write with heads normalised to unit length. The paper does not do this, the authors' later code does;
    without it, jumps can make heads longer than 1, so that writes erase too much."""
    controller: Literal["gru", "lstm"] = "gru"
    """The recurrent network that controls the heads."""
    published_heads: bool = False
    """The write head of each step moves from the read head's position, as in the code behind the paper's numbers. In
    the paper's text and the authors' later code, each head moves from its own position."""
    input_dropout: UnitInterval = 0.2
    """Dropout of the inputs of the layers."""
    dropout: UnitInterval = 0.1
    """Dropout before the output head."""

    @nn.nowrap
    def reader(self, *, answers: int, train: bool) -> nn.Module:
        causal = require_spec(self.spec, self).causal
        layer = NAMTuringLayer(
            tapes=self.tapes,
            transitions=(LEFT, NO_OP, RIGHT, *([JUMP] if self.jump else []), *self.rules),
            tape_length=self.tape_length,
            normalize_heads=self.normalize_heads,
            controller=self.controller,
            published_heads=self.published_heads,
            causal=causal,
            **self.dtypes,
            parent=None,
        )
        layers = tuple(layer.clone() for _ in range(1 if causal else self.layers))
        encoder = NAMTuringEncoder(
            layers, input_dropout=self.input_dropout, dropout=self.dropout, **self.dtypes, name="encoder"
        )
        return sequential(encoder, self, embedding_size=self.hidden_size)
