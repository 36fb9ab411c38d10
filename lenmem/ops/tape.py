"""Tapes: the neighbours of the slots that were read, sharpened read weights, and a tape that moves under its head.

Yang & Rush, "Lie-Access Neural Turing Machines", ICLR 2017, section 2 and appendix A (the RAM/tape baseline): reading a
memory as a tape. Delétang et al., "Neural Networks and the Chomsky Hierarchy", ICLR 2023 (arXiv 2207.02098), with its
published code: the tape of the Tape-RNN, after Suzgun et al. 2019 (arXiv 1911.03329).

Shapes: `weights` and `mask` [..., T], `keys` [..., T, d]; `tape` [..., T, W], with the cell under the head first; `new`
[..., W]; any leading axes.
"""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from lenmem.ops.lie import masked_softmax


def shifted_keys(
    weights: Float[Array, "... T"], keys: Float[Array, "... T d"], mask: Bool[Array, "... T"] | None = None
) -> tuple[Float[Array, "... d"], Float[Array, "... d"]]:
    """The mean keys one slot to the left and to the right of the slots that were read (appendix A): (k_L, k_R).

    k_L = sum_{i > 1} w_i k_{i-1}, k_R = sum_{i < L} w_i k_{i+1} over the L unmasked slots, which are a prefix. The
    weight of the first slot does not contribute to k_L, and that of the last slot not to k_R. O(T d).
    """
    if mask is not None:
        weights, keys = jnp.where(mask, weights, 0), jnp.where(mask[..., None], keys, 0)
    left = jnp.einsum("...t,...td->...d", weights[..., 1:], keys[..., :-1, :])
    right = jnp.einsum("...t,...td->...d", weights[..., :-1], keys[..., 1:, :])
    return left, right


def sharpen(weights: Float[Array, "... T"], sharpness: Float[Array, "..."]) -> Float[Array, "... T"]:
    """w_i^gamma / sum_j w_j^gamma (Graves et al. 2014; appendix A), `sharpness` gamma >= 1.

    Weights need not sum to 1. Zeros stay zero, with zero gradient; a row of zeros is unchanged.
    """
    positive = weights > 0
    logarithms = jnp.log(jnp.where(positive, weights, 1))
    return masked_softmax(sharpness[..., None] * logarithms, positive)


def write_and_move(
    tape: Float[Array, "... T W"],
    new: Float[Array, "... W"],
    moves: Float[Array, "... 5"],
    jump: Int[Array, "..."] | int,
) -> Float[Array, "... T W"]:
    """Overwrites cell 0, which is under the head, then moves the circular tape (Delétang et al. 2023):

        C = [new; S_1 .. S_{T-1}],  S'_i = m_1 C_i + m_2 C_{i+1} + m_3 C_{i-1} + m_4 C_{i+L} + m_5 C_{i-L}

    with indices modulo T, probabilities m = `moves` and L = `jump`, the length of the input. The second move brings the
    next cell under the head, the third the previous one. A jump by a multiple of T changes nothing. Every step writes.
    O(T W); the published code multiplies by a T x T matrix for each move.
    """
    written = jnp.concatenate([new[..., None, :], tape[..., 1:, :]], axis=-2)
    cells = jnp.arange(tape.shape[-2])
    jump = jnp.broadcast_to(jnp.asarray(jump), tape.shape[:-2])[..., None]

    def far(step: Array) -> Array:
        """The tape after a move by a different distance in each row."""
        return jnp.take_along_axis(written, ((cells + step) % len(cells))[..., None], axis=-2)

    moved = (written, jnp.roll(written, -1, axis=-2), jnp.roll(written, 1, axis=-2), far(jump), far(-jump))
    return sum((moves[..., i, None, None] * after for i, after in enumerate(moved)), jnp.zeros_like(tape))
