"""Automaton of answers: a learned table with the next answer for each input and last answer.

This network is ours. It is a Jordan network (Jordan 1986), whose state is its last answer, reduced to a table: for an
input token x and a last answer a, which is one of K or, at the first step, none, the logits of the next answer are

    z_t = E[x_t, a_{t-1}],

one free vector for each pair. In training a_{t-1} is the target (teacher forcing), afterwards the network's own answer,
argmax z_{t-1}. Its only state is a token, so the network is a finite automaton. All entries of its table occur in short
sequences; if they are correct, the network is correct at every length. It can solve tasks with an answer at each input
that depends only on the last answer and the input, such as word problems of groups.

Parameters: X (K + 1) K for X input tokens. Cost per step: O(K).
"""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp

from lenmem.fields import PositiveFloat
from lenmem.nn.interfaces import FlatModel, require_spec
from lenmem.nn.interfaces.decoding import shifted_answers
from lenmem.types import Spec


class AnswerAutomaton(FlatModel):
    """An automaton whose states are its answers, for tokens that are answered one by one."""

    spread: PositiveFloat = 0.1
    """Standard deviation of the initial logits."""

    @nn.nowrap
    def supports(self, spec: Spec) -> str | None:
        """None, or the reason why this model cannot take the task."""
        if spec.alignment != "aligned":
            return "its state is the answer to the last input; the task's answers come after the input"
        if not spec.takes_tokens or spec.outputs != "tokens":
            return "it has a table of input tokens and answer tokens; the task has other values"
        return super().supports(spec)

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
        """int[B, N], bool[B, N] -> logits [B, N, K]; `targets` are read in training, or wherever they are given."""
        spec = require_spec(self.spec, self, inputs, input_mask, target_mask, targets)
        if reason := self.supports(spec):
            raise ValueError(f"{type(self).__name__} cannot take the task: {reason}")
        answers = spec.output_size
        shape = (spec.vocabulary, answers + 1, answers)
        table = self.param("table", nn.initializers.normal(self.spread), shape, self.param_dtype)
        table = table.astype(self.dtype or self.param_dtype)
        tokens = jnp.where(input_mask, inputs, 0)
        if targets is not None:
            return table[tokens, shifted_answers(targets, target_mask, spec)]
        if train:
            raise ValueError("teacher forcing needs the targets in training: call the model with targets=batch.targets")

        def answer(last: jax.Array, token: jax.Array) -> tuple[jax.Array, jax.Array]:
            logits = table[token, last]
            return jnp.argmax(logits, axis=-1), logits

        start = jnp.full(inputs.shape[:1], answers)
        return jnp.swapaxes(jax.lax.scan(answer, start, tokens.T)[1], 0, 1)
