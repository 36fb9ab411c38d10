"""Operations called outside of `jax.jit`: the same results, and one compilation."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lenmem
from lenmem import ops
from lenmem.ops.alone import compiled_alone
from lenmem.placement import on_platform, platform
from lenmem.tasks.base import draw
from tests.compilations import compilations
from tests.training.tiny import TASK, experiment

KEY = jax.random.key(0)
X, GATES = jax.random.normal(KEY, (2, 9, 4)), jax.random.uniform(KEY, (2, 9))
REAL = jnp.arange(9) < jnp.array([[9], [5]])
CALLS: dict[str, Callable] = {
    "allocation": lambda: ops.allocation_weights(GATES),
    "blocks": lambda: ops.geometric_attention(X, X, X, key_mask=REAL, block_size=2),
    "tolerance": lambda: ops.geometric_attention(X, X, X, scale=jnp.array(0.5), tolerance=1e-3, normalize=True),
    "recurrence": lambda: ops.linear_recurrence(X, X, X, 0.5, log_decay=jnp.log(GATES), initial=jnp.ones((4, 4))),
    "nam_scan": lambda: ops.nam_scan(ops.unit(X), X, GATES, GATES, queries=X, chunk_size=2),
    "similarity": lambda: ops.nearest_states_similarity(X, REAL, 3),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_second_call_compiles_nothing_and_gives_the_same(call):
    alone = call()
    with compilations() as compiled:
        jax.block_until_ready(call())
        assert not compiled
        traced = jax.jit(call)()
        assert compiled
    for x, y in zip(jax.tree.leaves(alone), jax.tree.leaves(traced), strict=True):
        np.testing.assert_allclose(x, y, atol=1e-6)


def test_options_and_devices_have_programs_of_their_own():
    """Numbers that are checked, and the platform, are known while the operation is traced."""

    @compiled_alone
    def told(x: jax.Array, *, times: float = 1.0, name: str | None = None) -> jax.Array:
        return x * (2 if times > 1 else 1) + int(platform() == "tpu") + int(name is not None)

    assert [told(1.0), told(1.0, times=3.0), told(1.0, name="x")] == [1, 2, 2]
    with on_platform("tpu"):
        assert told(1.0) == 2
    with pytest.raises(ValueError, match="tolerance"):
        ops.geometric_attention(X, X, X, tolerance=1.0)


def test_a_run_answers_by_one_program():
    """`Run.apply`; with options of the network as before."""
    with jax.numpy_dtype_promotion("standard"):  # of Optax
        run = lenmem.Run.of(lenmem.train(experiment(steps=2)))
    batch = draw(TASK, KEY, jnp.array([2, 3]), 3)
    asked = batch.inputs, batch.input_mask, batch.target_mask
    expected = run.apply(*asked, train=False)
    np.testing.assert_allclose(run.apply(*asked), expected, atol=1e-6)
    with compilations() as compiled:
        jax.block_until_ready(run.apply(*asked, seed=1))
    assert not compiled
