"""Reading an endless sequence token by token, with a state of fixed size.

A network that can do this stores its state in the collection `memory` (`lenmem.nn.module.in_pieces`), and is applied to
the next tokens alone.
"""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp

from lenmem.nn.interfaces.packing import require_spec
from lenmem.types import PyTree, Spec


class Streaming(nn.Module, kw_only=True):
    """Adds `empty_memory` and `step` to a model whose parts keep their state in the collection `memory`."""

    spec: Spec | None = None

    @nn.nowrap
    def whole_only(self) -> str | None:
        """None, or the reason why this network cannot read a sequence in pieces."""
        raise NotImplementedError

    @nn.nowrap
    def require_pieces(self) -> None:
        """Raises ValueError, with the reason, if this network cannot read a sequence in pieces."""
        if reason := self.whole_only():
            raise ValueError(f"this {type(self).__name__} cannot read a sequence step by step: {reason}")

    @nn.nowrap
    def empty_memory(self, rows: int) -> PyTree:
        """The initial memory of `rows` sequences for `step`: the sums of each layer, float32[B, heads, d_head, d_head]
        (and [B, heads, d_head] for `linear`), and the number of tokens read, int32[B].

        Raises ValueError for a network that cannot read in pieces, with the reason.
        """
        spec = require_spec(self.spec, self)
        self.require_pieces()
        width = () if spec.takes_tokens else (spec.input_width,)
        kind = jnp.int32 if spec.takes_tokens else jnp.float32
        inputs = jax.ShapeDtypeStruct((rows, 1, *width), kind)
        params = jax.eval_shape(lambda x: self.init(jax.random.key(0), x, *_all_real(x))["params"], inputs)
        memory = jax.eval_shape(lambda p, x: self.step(p, None, x)[0], params, inputs)
        return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), memory)

    @nn.nowrap
    def step(
        self, params: PyTree, memory: PyTree | None, inputs: jax.Array, mask: jax.Array | None = None
    ) -> tuple[PyTree, jax.Array]:
        """Reads the next tokens of sequences: (the new memory, the outputs for these tokens).

        The outputs equal those for the complete sequences, for causal tasks whose answers are aligned with their
        inputs. The size of the memory and the cost of a step do not depend on the number of tokens read before.

        Args:
            params: the network's parameters.
            memory: the memory after the last step; at first `empty_memory`, or None.
            inputs: the next n tokens of each row, int[B, n] or float[B, n, D], for any n from 1.
            mask: bool[B, n], the real tokens, first in each row. None: all. Other tokens have no effect.

        Raises ValueError for a network that cannot read in pieces, with the reason, and for another number of rows
        than in the memory.
        """
        self.require_pieces()
        rows = {len(leaf) for leaf in jax.tree.leaves(memory)} - {len(inputs)}
        if rows:
            raise ValueError(f"the memory is that of {rows.pop()} rows, and there are tokens for {len(inputs)}")
        real, asked = _all_real(inputs)
        variables = {"params": params} if memory is None else {"params": params, "memory": memory}
        masks = (real, asked) if mask is None else (mask, mask)
        outputs, changed = self.apply(variables, inputs, *masks, mutable=["memory"])
        return changed["memory"], outputs


def _all_real(inputs: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The masks of inputs and answers without padding."""
    ones = jnp.ones(inputs.shape[:2], bool)
    return ones, ones
