"""Neural Attention Memory as a Transformer and as a recurrent network: NAM-Transformer and LSAM.

Nam & Seo, "Neural Attention Memory", https://arxiv.org/abs/2302.09422. A memory is a matrix M that maps unit keys to
values. Reading multiplies M by a unit query; writing adds an outer product and can erase the key's old value:

    RD(M, q, p) = p M q        WR(M, k, v, p_w, p_e) = M + p_w v k^T - p_e M k k^T        (section 3.1)

Without erasure, the memory of a sequence is a sum, which gives a linear attention: the *NAM-Transformer* (section 4).
With erasure, M replaces the cell state of an LSTM: the *LSAM* (section 5.1). `lenmem.models.namtm` uses M as a tape.

Notation: d width of the states, H heads of width d_h = d / H, x_t input [B, d], h_t state [B, d], M_t memory
[B, H, d_h, d_h], mu normalisation to unit length. Cost per position: O(d^2 + d d_h) for both. LSAM is computed step by
step.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.linen.dtypes import promote_dtype

from lenmem import ops
from lenmem.fields import PositiveInt, UnitInterval
from lenmem.nn.attention import Mixing
from lenmem.nn.dropout import dropped
from lenmem.nn.encoders import reverse
from lenmem.nn.interfaces import FlatModel, recurrent, require_spec, sequential
from lenmem.nn.interfaces.streaming import Streaming
from lenmem.nn.linear import Linear, linear_init
from lenmem.nn.module import Part
from lenmem.nn.positions import Numbered, PositionEncoding
from lenmem.nn.recurrence import recomputed_scan, where_valid
from lenmem.nn.transformer import PreNormEncoder
from lenmem.types import Step


class NAMTransformer(Numbered, Streaming, FlatModel):
    """Transformer encoder with normalised outer-product attention (section 4), and mask tokens for the answer.

    `attention="linear"` is the Linear Transformer (Katharopoulos et al. 2020), `attention="softmax"` the usual one; the
    three differ only in their attention. On causal tasks position t sees only positions 0 .. t. There, outer-product
    and linear attention can read an endless sequence token by token, with a memory of fixed size (`step`).

    The sizes of the paper's code for the Long Range Arena: ListOps and text 4 layers, width 256, 4 heads, MLP 1024;
    image 1 layer, width 128, 8 heads of width 8 (the text says 16), MLP 128, dropout 0.3. That code lets padding write
    into the memory (`mask_padding=False`) and answers at a begin token (`column="first"`).
    """

    hidden_size: PositiveInt = 128
    """d: width of the states and of the embedding."""
    layers: PositiveInt = 4
    """Number of layers."""
    heads: PositiveInt = 4
    """Number of attention heads per layer; must divide `hidden_size`."""
    feedforward_size: PositiveInt = 512
    """Hidden width of the feed-forward networks."""
    attention: Mixing = "outer_product"
    """The kind of attention."""
    mask_padding: bool = True
    """Ignore padding. False: padding is written too, as in the published code, so results depend on the padded
    length."""
    attention_size: PositiveInt | None = None
    """Width of queries, keys and values, all heads together; None: `hidden_size`."""
    dropout: UnitInterval = 0.1
    """Dropout of hidden units, layer outputs and embeddings."""
    positions: PositionEncoding = "sinusoidal"
    """`sinusoidal` or `learned`, which are added to the states, or `none`. Softmax attention also takes the other
    encodings of `Transformer`, which change the logits of pairs; the other kinds of attention have no such logits."""
    column: Literal["last", "first"] = "last"
    """Whether a single answer is read at the end token or at the begin token."""

    @nn.nowrap
    def reader(self, *, answers: int, train: bool) -> nn.Module:
        encoder = PreNormEncoder(
            layers=self.layers,
            heads=self.heads,
            feedforward_size=self.feedforward_size,
            attention=self.attention,
            causal=require_spec(self.spec, self).causal,
            mask_padding=self.mask_padding,
            attention_size=self.attention_size,
            dropout=self.dropout,
            positions=self.positions,
            **self.numbering,
            **self.dtypes,
            name="encoder",
        )
        return sequential(encoder, self, embedding_size=self.hidden_size, column=self.column)

    @nn.nowrap
    def whole_only(self) -> str | None:
        """None, or the reason why this network cannot read a sequence in pieces."""
        spec = require_spec(self.spec, self)
        if spec.alignment != "aligned" or not spec.causal:
            return "answer t must depend on inputs 0 .. t alone, so the task must be aligned and causal"
        if self.attention == "softmax":
            return "softmax attention needs all earlier keys; outer_product and linear store only a sum"
        if self.positions == "learned" or self.random_positions:
            return "a stream has no longest length; allowed are the positions sinusoidal and none, not random ones"
        if not self.mask_padding:
            return "without mask_padding, padding would be written into the memory"
        return None


# Long Short-term Attention Memory, section 5.1 -----------------------------------------------------------------------


class LSAMState(NamedTuple):
    """(h, M) of LSAM."""

    hidden: jax.Array
    """h: the last read, [B, d]."""
    memory: jax.Array
    """M: float32[B, H, d_h, d_h]."""


class LSAMCell(Part):
    """One layer of LSAM in one direction, as a recurrent cell. `run` processes a complete sequence faster."""

    hidden_size: int = 128
    heads: int = 4

    def start(self, batch_shape: tuple[int, ...], steps: int = 0) -> LSAMState:
        """h_0 = 0, M_0 = 0."""
        if self.hidden_size % self.heads:
            raise ValueError(f"{self.heads} heads do not divide a hidden size of {self.hidden_size}")
        width = self.hidden_size // self.heads
        hidden = jnp.zeros((*batch_shape, self.hidden_size), self.dtype or self.param_dtype)
        return LSAMState(hidden, jnp.zeros((*batch_shape, self.heads, width, width)))

    @nn.compact
    def weights(self, width: int) -> tuple[jax.Array, jax.Array, jax.Array]:
        """W_x, W_h and b of the linear map from [x : h] to [q : k : v] and <p_r, p_w>."""
        fan_in, features = width + self.hidden_size, 3 * self.hidden_size + 2 * self.heads
        init = linear_init("fan_in", fan_in)
        kernel = self.param("kernel", init, (fan_in, features), self.param_dtype)
        bias = self.param("bias", init, (features,), self.param_dtype)
        return kernel[:width], kernel[width:], bias

    def advance(self, state: LSAMState, commands: jax.Array) -> LSAMState:
        """(h_{t-1}, M_{t-1}) and the commands W [x : h] + b [B, 3d + 2H] -> (h_t, M_t)."""
        # [q_t : k_t : v_t] = W_qkv [x_t : h_{t-1}] + b_qkv  and  <p_r, p_w> = sigmoid(W_rw [x_t : h_{t-1}] + b_rw)
        commands, d = commands.astype(jnp.float32), self.hidden_size
        query, key, value = (
            x.reshape(*x.shape[:-1], self.heads, -1) for x in jnp.split(commands[..., : 3 * d], 3, axis=-1)
        )
        read, write = jnp.split(nn.sigmoid(commands[..., 3 * d :]), 2, axis=-1)
        # M_t = WR(M_{t-1}, mu(k_t), v_t, p_w, p_w)
        memory = ops.nam_write(state.memory, ops.unit(key), value, write, write)
        # h_t = RD(M_t, mu(q_t), p_r)
        hidden = ops.nam_read(memory, ops.unit(query), read)
        return LSAMState(hidden.reshape(state.hidden.shape).astype(state.hidden.dtype), memory)

    def __call__(self, state: LSAMState, step: Step) -> tuple[LSAMState, jax.Array]:
        """(new state, h_t)."""
        of_input, of_hidden, bias = self.weights(step.inputs.shape[-1])
        inputs, hidden, of_input, of_hidden, bias = promote_dtype(
            step.inputs, state.hidden, of_input, of_hidden, bias, dtype=self.dtype
        )
        state = self.advance(state, inputs @ of_input + hidden @ of_hidden + bias)
        return state, state.hidden

    def run(self, states: jax.Array, mask: jax.Array, memory: jax.Array | None = None) -> tuple[jax.Array, jax.Array]:
        """[B, N, d], bool[B, N], M_0 (None: 0) -> h_1 .. h_N [B, N, d], and the memory after each row's last input."""
        of_input, of_hidden, bias = self.weights(states.shape[-1])
        states, of_input, of_hidden, bias = promote_dtype(states, of_input, of_hidden, bias, dtype=self.dtype)
        start = self.start(mask.shape[:1])
        start = LSAMState(start.hidden.astype(states.dtype), start.memory if memory is None else memory)
        commands = jnp.swapaxes(states @ of_input + bias, 0, 1)  # W_x x_t + b for all t at once

        def body(state, xs):
            commands, valid = xs
            state = where_valid(valid, self.advance(state, commands + state.hidden @ of_hidden), state)
            return state, state.hidden

        final, hidden = recomputed_scan(body, start, (commands, mask.T), mask.T)
        return jnp.where(mask[..., None], jnp.swapaxes(hidden, 0, 1), 0), final.memory


class LSAMEncoder(Part):
    """The paper's two-layer LSAM. Layer 2 starts from the final memory of layer 1, so it can look up any input.

        layer 1   x1 = x + Wo [LSAM forward : LSAM backward], H/2 heads each;   x2 = LN(x1 + FFN(x1))
        layer 2   LN(Wo LSAM(x2)), forward, H heads, M_0 = both directions' final memories

    with Wo(x) = relu(drop(Linear(x))). If `causal`, layer 1 has H forward heads and layer 2 starts with an empty
    memory.
    """

    heads: int = 4
    feedforward_size: int = 256
    causal: bool = False
    dropout: float = 0.1

    @nn.compact
    def __call__(self, states: jax.Array, mask: jax.Array, *, deterministic: bool = True) -> jax.Array:
        """[B, N, d], bool[B, N] -> [B, N, d]."""
        width = states.shape[-1]
        if not self.causal and (self.heads % 2 or width % 2):
            raise ValueError(f"two directions share width and heads evenly; got a width of {width}, {self.heads} heads")

        def drop(x):
            return dropped(x, self.dropout, deterministic=deterministic)

        def project(x, name):
            return nn.relu(drop(Linear(width, **self.dtypes, name=name)(x)))

        states = jnp.where(mask[..., None], states, 0)
        if self.causal:
            read, _ = LSAMCell(width, heads=self.heads, **self.dtypes, name="layer_1").run(states, mask)
            memory = None
        else:
            cells = [
                LSAMCell(width // 2, heads=self.heads // 2, **self.dtypes, name=f"layer_1_{way}")
                for way in ("ahead", "back")
            ]
            ahead, memory_ahead = cells[0].run(states, mask)
            back, memory_back = cells[1].run(reverse(states, mask), mask)
            read = jnp.concatenate([ahead, reverse(back, mask)], axis=-1)
            memory = jnp.concatenate([memory_ahead, memory_back], axis=1)
        states = states + project(read, "layer_1_out")
        hidden = nn.relu(Linear(self.feedforward_size, **self.dtypes, name="feedforward_in")(states))
        states = states + drop(Linear(width, **self.dtypes, name="feedforward_out")(drop(hidden)))
        states = nn.LayerNorm(1e-5, **self.dtypes, name="feedforward_norm")(states)
        read, _ = LSAMCell(width, heads=self.heads, **self.dtypes, name="layer_2").run(states, mask, memory)
        states = nn.LayerNorm(1e-5, **self.dtypes, name="norm")(project(read, "layer_2_out"))
        return jnp.where(mask[..., None], states, 0)


class LSAM(FlatModel):
    """Long Short-term Attention Memory: the paper's bidirectional two-layer model, with mask tokens for the answer.

    There are no position encodings, because the recurrence depends on the order. The paper's size is
    `LSAM(hidden_size=1024, heads=8, feedforward_size=2048)`: 17.4 M parameters. On causal tasks both layers read
    forward, and the second starts with an empty memory.
    """

    hidden_size: PositiveInt = 128
    """d: width of the states and of the embedding."""
    heads: PositiveInt = 4
    """H: heads of a layer; in layer 1 each direction has half of them."""
    feedforward_size: PositiveInt = 256
    """Hidden width of the feed-forward network between the layers."""
    dropout: UnitInterval = 0.1
    """Dropout of layer outputs and hidden units."""

    @nn.nowrap
    def reader(self, *, answers: int, train: bool) -> nn.Module:
        encoder = LSAMEncoder(
            heads=self.heads,
            feedforward_size=self.feedforward_size,
            causal=require_spec(self.spec, self).causal,
            dropout=self.dropout,
            **self.dtypes,
            name="encoder",
        )
        return sequential(encoder, self, embedding_size=self.hidden_size)


class RecurrentLSAM(FlatModel):
    """One LSAM layer used like an LSTM: it reads and then answers in one scan."""

    hidden_size: PositiveInt = 128
    """d: width of the state."""
    heads: PositiveInt = 4
    """H: number of heads, each with its own memory."""
    embedding_size: PositiveInt = 64
    """Width of the input embedding."""

    @nn.nowrap
    def reader(self, *, answers: int, train: bool) -> nn.Module:
        return recurrent(LSAMCell(self.hidden_size, heads=self.heads, **self.dtypes, name="cell"), self, begin=True)
