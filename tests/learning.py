"""What a test that trains a network is made of: a short training from a key, repeated over keys, and a bar for all.

Such a test is marked `learning` and asks for the fixture `learns`:

    @pytest.mark.learning
    def test_it_learns(learns):
        learns(accuracy_of, bar=0.9, worst=0.97)

`accuracy_of(key)` trains and gives back one number, which has to reach the bar. `pytest` trains from key 0 alone,
`pytest -m learning --keys 20` from keys 0 to 19. `worst` is the lowest of those 20 numbers.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree

from lenmem.types import PyTree

INSTRUCTION_SETS = ("SSE4_2", "AVX", "AVX2", "AVX512", "AVX512_VNNI", "AVX512_BF16", "AMX", "AMX_FP16")
"""What `XLA_FLAGS=--xla_cpu_max_isa=...` takes."""


def check_instruction_set(flags: str) -> None:
    """A `ValueError` if XLA would ignore the instruction set that the flags name: it does so without a word."""
    for name in re.findall(r"--xla_cpu_max_isa=(\S*)", flags):
        if name.upper() not in INSTRUCTION_SETS:
            raise ValueError(f"--xla_cpu_max_isa is {name!r}; XLA knows {', '.join(INSTRUCTION_SETS)}")


briefly = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
"""`jit` for what runs once or twice: it compiles in half the time."""

trained = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 1})
"""`jit` for what trains: `conftest.py` has programs compiled quickly, with which an update takes five times as long."""


def fit(
    params: PyTree,
    loss: Callable[[PyTree, Any, jax.Array], jax.Array],
    batches: PyTree,
    key: jax.Array,
    learning_rate: float = 1e-2,
    b2: float = 0.999,
) -> PyTree:
    """The parameters after a step of Adam for each batch of `batches` [updates, ...].

    What makes such a training sure: gradients are clipped to norm 1, and the rate rises over the first tenth of the
    updates and falls to zero along a cosine. `loss(params, batch, key)` gets a new key for each update.
    """
    # One flat vector compiles faster than many small arrays.
    start, restore = ravel_pytree(params)
    updates = jax.tree.leaves(batches)[0].shape[0]
    rate = optax.warmup_cosine_decay_schedule(0.0, learning_rate, updates // 10, updates)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(rate, b2=b2))

    def update(carry: tuple[jax.Array, PyTree], inputs: tuple[PyTree, jax.Array]) -> tuple[Any, None]:
        vector, state = carry
        batch, step = inputs
        gradient = jax.grad(lambda vector: loss(restore(vector), batch, jax.random.fold_in(key, step)))(vector)
        changes, state = optimizer.update(gradient, state, vector)
        return (optax.apply_updates(vector, changes), state), None

    (vector, _), _ = jax.lax.scan(update, (start, optimizer.init(start)), (batches, jnp.arange(updates)))
    return restore(vector)


def values(one: Callable[[jax.Array], Any], keys: int) -> np.ndarray:
    """`one(key)` of the keys 0 to `keys` - 1, one after another: vmapped, these small programs are no faster."""
    return np.asarray([one(jax.random.key(i)) for i in range(keys)])
