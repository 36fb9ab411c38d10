"""NAM Turing machine (NAM-TM): memory matrices as tapes, with heads that move left, stay, move right or jump.

Nam & Seo, "Neural Attention Memory", https://arxiv.org/abs/2302.09422, section 5.2. A tape T = sum_i v_i e_i^T maps
positions e_i to values; a head is a vector over positions, and NAM's reading and writing (`lenmem.models.nam`) with
heads as keys make T a Turing tape. A second tape K holds a key for each position: read the other way round it is a
jump table that takes the head to where a key was written. No parameter depends on the length of the tapes.

Notation: P tapes of width d_t = d / P, L positions, T and K [B, P, d_t, L], heads H_r and H_w [B, P, L], action
probabilities p_action of each head, gates p_r and p_w of each tape, v value, k unit key, q_jump unit query. One step:

    T' = WR(T, H_w, v, p_w, p_w)        R = RD(T', H_r, p_r)
    K' = WR(K, H_w, k, p_w, p_w)        H_jump = RD(K'^T, q_jump, 1)
    H' = p_left roll^-1(H) + p_noop H + p_right roll(H) + p_jump H_jump, for both heads

All commands come from x and a controller that never sees what was read. So only heads and K run in sequence, and the
reads of all steps follow from the heads at once (`ops.nam_scan`). Cost: O(P L) a step for the heads and O(d L) for K,
which is left out where nothing jumps; O(N d L) for the reads.
"""

from __future__ import annotations

from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from lenmem import ops
from lenmem.fields import Positive, Share
from lenmem.nn.cells import GRUCell, LSTMCell
from lenmem.nn.encoders import Recurrent
from lenmem.nn.interfaces import FlatModel, require_spec, sequential
from lenmem.nn.linear import Linear, check_choices
from lenmem.nn.nam import JUMP, LEFT, NO_OP, RIGHT, Controls, Tapes, Transition, recomputed_scan
from lenmem.types import Dtype, Spec


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
    """The read and write heads as they are used at each step, and with `jumps` H_jump: [B, P, N, L] each.

    `mask` bool[B, N], `start` [L] where both heads begin, `tape` T at first. With `normalize` the heads are used at
    unit length, but stored as they are. With `published` the write head moves from where the read head was, as in the
    published code. H_jump is None where no transition looks at keys.
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
    """T' = WR(T, H_w, v, p_w, p_w) and R = RD(T', H_r, p_r) of all steps at once: (R [B, N, P, d_t], the last T').

    `mask` bool[B, N], heads [B, P, N, L] as they are used, `tape` T at first.
    """
    value, gate = jnp.swapaxes(controls.value, 1, 2), jnp.swapaxes(controls.write_probability, 1, 2)
    gate = jnp.where(mask[:, None, :], gate, 0)
    tape, reads = ops.nam_scan(write, value, gate, gate, queries=read, initial=tape)
    assert reads is not None
    return controls.read_probability[..., None] * jnp.swapaxes(reads, 1, 2), tape


class NAMTuringLayer(nn.Module):
    """One NAM-TM layer over a sequence, from a given tape (None: empty), with an empty key tape. See `NAMTM`."""

    tapes: int = 4
    transitions: tuple[Transition, ...] = (LEFT, NO_OP, RIGHT, JUMP)
    tape_length: int | None = None
    normalize_heads: bool = False
    controller: Literal["gru", "lstm"] = "gru"
    published_heads: bool = False
    causal: bool = False
    dtype: Dtype = None
    param_dtype: Dtype = jnp.float32

    @nn.compact
    def __call__(
        self, states: jax.Array, mask: jax.Array, tape: jax.Array | None = None
    ) -> tuple[jax.Array, jax.Array]:
        """x [B, N, d], bool[B, N], T -> (a linear map of the reads [B, N, d], the last T)."""
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
        return Linear(width, dtype=self.dtype, param_dtype=self.param_dtype, name="out")(reads), tape

    @nn.nowrap
    def positions(self, length: int) -> tuple[int, int]:
        """(L, the cell where heads start). By default nothing can wrap: room to both sides for `length` steps."""
        if self.tape_length is not None:
            if self.tape_length < 1:
                raise ValueError(f"tape_length is {self.tape_length}; allowed are None and lengths from 1 on")
            return self.tape_length, 0
        side = length * max(transition.reach for transition in self.transitions)
        return 2 * side + 1, side

    @nn.nowrap
    def controls(self, states: jax.Array, mask: jax.Array) -> Controls:
        """x [B, N, d] -> the commands of all steps: actions, gates and queries from a controller, v and k from x."""
        check_choices(self, controller=("gru", "lstm"))
        width = states.shape[-1]
        options: dict[str, Any] = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        if width % self.tapes or (width % 2 and not self.causal):
            raise ValueError(f"{self.tapes} tapes, or two directions, do not divide a width of {width}")

        def per_tape(x, features, name):
            x = Linear(self.tapes * features, **options, name=name)(x).astype(jnp.float32)
            return x.reshape(*mask.shape, self.tapes, features)

        cell = {"gru": GRUCell, "lstm": LSTMCell}[self.controller]
        size = width if self.causal else width // 2
        cell = cell(size, learned_start=False, **options, parent=None)
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


class NAMTuringEncoder(nn.Module):
    """Layers that all read src = LN(drop(Linear(x))) and hand on their tape.

    States relu(drop(LN(R))) of the last layer's reads R.
    """

    layers: tuple[NAMTuringLayer, ...]
    input_dropout: float = 0.2
    dropout: float = 0.1
    dtype: Dtype = None
    param_dtype: Dtype = jnp.float32

    @property
    def causal(self) -> bool:
        """A tape handed on holds the whole input."""
        return len(self.layers) == 1 and self.layers[0].causal

    @nn.compact
    def __call__(self, states: jax.Array, mask: jax.Array) -> jax.Array:
        """[B, N, d], bool[B, N] -> [B, N, d]."""
        options: dict[str, Any] = {"dtype": self.dtype, "param_dtype": self.param_dtype}

        def drop(x, rate):
            return nn.Dropout(rate, deterministic=not self.has_rng("dropout"))(x) if rate else x

        states = jnp.where(mask[..., None], states, 0)
        source = drop(Linear(states.shape[-1], **options, name="source")(states), self.input_dropout)
        source = jnp.where(mask[..., None], nn.LayerNorm(1e-5, **options, name="source_norm")(source), 0)
        reads, tape = source, None
        for layer in self.layers:
            reads, tape = layer(source, mask, tape)
        states = nn.relu(drop(nn.LayerNorm(1e-5, **options, name="norm")(reads), self.dropout))
        return jnp.where(mask[..., None], states, 0)


class NAMTM(FlatModel):
    """NAM Turing machine with mask tokens for the answer: layer 2 starts from the tape that layer 1 leaves.

    Both layers read the input, the reads of the first are dropped; what the first found out travels on its tape. As the
    controller reads both ways, the first step may know the whole input. On causal tasks there is one layer, whose
    controller reads forward.

    The paper's size is `NAMTM(hidden_size=1024, tapes=8, tape_length=32)`: 19.1 M parameters; without JUMP
    `jump=False, controller="lstm"`: 18.0 M. Its tape of 32 cells is circular, and shorter than its inputs.
    """

    hidden_size: Positive = 128
    """d: width of the states, of the embedding and of all tapes together."""
    tapes: Positive = 4
    """P: tapes of a layer, each with a read head and a write head."""
    layers: Positive = 2
    """Number of layers."""
    jump: bool = True
    """Heads may jump; without, LEFT, NO-OP and RIGHT remain (the paper's ablation)."""
    rules: tuple[Transition, ...] = ()
    """More transitions, beside the standard ones."""
    tape_length: Positive | None = None
    """L of circular tapes on which heads start at cell 0. None: so long that no head can get round, whatever the input;
    the result is that of an endless tape."""
    normalize_heads: bool = False
    """Read and write with heads of unit length. The paper does not: by jumps heads may grow, and erasing overshoot."""
    controller: Literal["gru", "lstm"] = "gru"
    """The recurrent network that commands the heads."""
    published_heads: bool = False
    """The write head of each step moves from where the read head was, as in the code behind the paper's numbers. By the
    paper, and in the authors' later code, each head moves from where it was itself."""
    input_dropout: Share = 0.2
    """Dropout of the inputs of the layers."""
    dropout: Share = 0.1
    """Dropout before the head."""
    spec: Spec | None = None
    dtype: Dtype = None
    param_dtype: Dtype = jnp.float32

    @nn.compact
    def __call__(self, inputs, input_mask, target_mask, *, targets=None, train: bool = False) -> jax.Array:
        """int[B, N] or float[B, N, D], bool[B, N], bool[B, M] -> logits or values [B, M, K]."""
        options: dict[str, Any] = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        causal = require_spec(self.spec, self).causal
        layer = NAMTuringLayer(
            self.tapes,
            (LEFT, NO_OP, RIGHT, *([JUMP] if self.jump else []), *self.rules),
            self.tape_length,
            self.normalize_heads,
            self.controller,
            self.published_heads,
            causal,
            **options,
            parent=None,
        )
        layers = tuple(layer.clone() for _ in range(1 if causal else self.layers))
        encoder = NAMTuringEncoder(layers, self.input_dropout, self.dropout, **options, name="encoder")
        reader = sequential(encoder, self, embedding_size=self.hidden_size)
        return reader(inputs, input_mask, target_mask, targets=targets, train=train)
