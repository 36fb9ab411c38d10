"""Memory of a NAM-Transformer that reads a stream token by token, and of the same network on whole sequences.

python docs/examples/streaming_memory.py
"""

import resource

import jax
import jax.numpy as jnp
import numpy as np

from lenmem.models.nam import NAMTransformer
from lenmem.types import Spec

BYTES = Spec(vocabulary=256, output_size=256, alignment="aligned", causal=True)
model = NAMTransformer(spec=BYTES, dropout=0.0)  # four layers, width 128, four heads
ones = jnp.ones((1, 2), bool)
params = jax.jit(model.init)(jax.random.key(0), jnp.zeros((1, 2), int), ones, ones)["params"]
step = jax.jit(model.step, donate_argnums=1)


def stream(tokens: int) -> dict[str, float]:
    """Reads that many random bytes one by one: the size of the memory, and how the process grows after the first."""
    rng = np.random.default_rng(0)
    memory, before = model.empty_memory(1), 0
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(memory))
    for t in range(tokens):
        memory, logits = step(params, memory, rng.integers(0, 256, (1, 1), np.int32))
        if t % 100 == 99:
            logits.block_until_ready()
        if t == 99:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return {"memory, bytes": size, "growth of the process, KiB": grown}


def whole(tokens: int) -> int:
    """Bytes that the compiled network needs for a whole sequence of that many tokens, besides its parameters."""
    inputs = jax.ShapeDtypeStruct((1, tokens), jnp.int32)
    mask = jax.ShapeDtypeStruct((1, tokens), bool)
    program = jax.jit(lambda p, x, m: model.apply({"params": p}, x, m, m)).lower(params, inputs, mask).compile()
    used = program.memory_analysis()
    assert used is not None
    return used.temp_size_in_bytes + used.output_size_in_bytes


if __name__ == "__main__":
    for tokens in (1_000, 100_000):
        measured = ", ".join(f"{name}: {value:,}" for name, value in stream(tokens).items())
        print(f"{tokens:,} tokens one by one: {measured}; as a whole sequence: {whole(tokens):,} bytes", flush=True)
