"""Compiled programs are used again for equal arguments, and not after the user's own code has changed."""

from __future__ import annotations

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lenmem import models, score, train
from lenmem.evaluation import traces
from lenmem.reuse import own_code, reused
from lenmem.serialize import from_plain, to_plain
from lenmem.tasks.base import draw
from tests.training.tiny import TASK, experiment

FACTOR = 2.0


def scaled(x: jax.Array) -> jax.Array:
    """A helper function of the network."""
    return FACTOR * x


class Constant(nn.Module):
    """Answers from its bias, in a way that the tests edit."""

    output_size: int = 5

    def bent(self, bias: jax.Array) -> jax.Array:
        """A method that the tests replace."""
        return bias

    @nn.compact
    def __call__(self, inputs, input_mask, target_mask, *, targets=None, train: bool = False):
        """[B, M, K]."""
        bias = self.param("bias", nn.initializers.normal(0.05), (self.output_size,))
        self.sow("traces", "bias", jnp.broadcast_to(self.bent(bias), (len(inputs), self.output_size)))
        return jnp.broadcast_to(scaled(self.bent(bias)), (*target_mask.shape, self.output_size))


class Derived(Constant):
    """With a base class of one's own."""


def replace_method(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Constant, "bent", lambda self, bias: -3 * bias)


def replace_helper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "scaled", lambda x: -3 * x)


def edit_helper(monkeypatch: pytest.MonkeyPatch) -> None:
    """As autoreload does: the same function with other code."""
    monkeypatch.setattr(scaled, "__code__", (lambda x: -3 * x).__code__)


def replace_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "FACTOR", -3.0)


EDITS = [replace_method, replace_helper, edit_helper, replace_number]


@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize("kind", [Constant, Derived])
def test_the_code_of_an_object_changes_with_every_edit(monkeypatch, edit, kind):
    """Also within other arguments; equal objects have equal code until then."""
    before = own_code(TASK, (kind(),))
    assert before and before == own_code(TASK, (kind(),))
    edit(monkeypatch)
    assert own_code(TASK, (kind(),)) != before


def test_functions_are_searched_too():
    """Those of a closure, a partial function and a jitted one; the code of packages is not searched."""

    def made(factor: float) -> Any:
        return lambda x: factor * scaled(x)

    for of in (made, lambda x: functools.partial(made(x), 1), lambda x: jax.jit(made(x))):
        assert own_code(of(1)) == own_code(of(1)) != own_code(of(2))
    large = np.zeros(5000)
    before = own_code(made(large))
    large[2500] = 1
    assert own_code(made(large)) != before
    assert own_code(made(jax.random.key(0))) == own_code(made(jax.random.key(0)))
    assert own_code(jnp.sum, nn.Dense(3), TASK, models.make("gru")) == ()


def test_what_is_not_hashable_is_made_each_time():
    """And no more than `size` results are kept."""
    get = reused(lambda *arguments: object(), 2)
    assert get([1]) is not get([1])
    assert get(1) is get(1)
    kept = get(1)
    get(2), get(3)
    assert get(1) is not kept


def test_shared_modules_are_told_from_equal_ones():
    """A network with one module in two places has other parameters than one with two equal modules."""
    get = reused(lambda *arguments: object(), 2)
    one, same = nn.Dense(3), nn.Dense(3)
    shared, apart = nn.Sequential((one, one)), nn.Sequential((one, same))
    assert shared == apart
    assert get(shared) is not get(apart)
    assert get(shared) is get(nn.Sequential((same, same)))
    with pytest.raises(ValueError, match="Sequential has one module in two places"):
        to_plain(shared)
    assert from_plain(to_plain(apart)) == apart


@pytest.mark.parametrize("edit", EDITS)
def test_an_edited_network_is_not_the_old_program(monkeypatch, edit):
    """In training, scores and traces of one process, with an equal configuration."""
    asked = experiment(Constant(), steps=2)
    batch = draw(TASK, jax.random.key(0), jnp.array([2, 3]), 3)

    def results() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        params = {"bias": jnp.arange(5.0)[None]}
        found = score(Constant(), params, TASK, 16)["token_accuracy"]
        ((outputs, _),) = traces.observed(Constant(), {"bias": jnp.arange(5.0)}, [batch])
        return np.asarray(train(asked).params["bias"]), found, outputs

    before = results()
    np.testing.assert_array_equal(np.concatenate([*map(np.ravel, results())]), np.concatenate([*map(np.ravel, before)]))
    edit(monkeypatch)
    for old, new in zip(before, results(), strict=True):
        assert not np.allclose(old, new)
