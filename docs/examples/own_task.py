"""A task from scratch: the maximum of the symbols read so far, at each position."""

import dataclasses

import jax
import jax.numpy as jnp

import lenmem
from lenmem.nn import Aligned


@dataclasses.dataclass(frozen=True)
class RunningMaximum(lenmem.Task):
    """y_t = max(x_1 .. x_t)."""

    symbols: int = 10
    train_lengths: tuple[int, int] = (1, 20)
    test_lengths: tuple[int, int] = (21, 80)

    @property
    def spec(self):
        return lenmem.Spec(
            vocabulary=self.symbols,
            output_size=self.symbols,
            shared_ids=True,  # an answer id means the same symbol as an input id
            alignment="aligned",  # slot t belongs to position t ...
            causal=True,  # ... and may depend only on what was read until then
            chance=0.40,  # accuracy of the best constant answer
            shapes=self.shapes,
        )

    def shapes(self, capacity):
        return capacity, capacity  # slots of the input, slots of the answer

    def sample(self, key, length, capacity):  # one example; `length` may be traced, `capacity` is a number
        inputs = jax.random.randint(key, (capacity,), 0, self.symbols)
        real = jnp.arange(capacity) < length
        return lenmem.Example(inputs, real, jax.lax.cummax(inputs), real, real)


experiment = lenmem.Experiment(
    RunningMaximum(),
    Aligned(lenmem.nn.LSTMCell(32), embedding_size=16),
    lenmem.Training(steps=500, batch_size=32, seeds=2),
)
