"""Recurrent encoder-decoders: the kinds of attention of the model; the decoders' twins are in `tests.nn`."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lenmem.models.seq2seq import Attention
from lenmem.tasks.base import draw
from lenmem.tasks.lantm import Reverse
from lenmem.types import Spec
from tests.models import contract
from tests.models.contract import Case, Learning

SPEC = Spec(vocabulary=5, output_size=6)
MASK = jnp.arange(4) < jnp.array([[4], [2]])
CALL = (jnp.array([[0, 3, 3, 1], [2, 4, 0, 0]]), MASK, jnp.ones((2, 3), bool))
TASK = Reverse(vocabulary=4, train_lengths=(1, 5))


def shapes(**fields):
    model = Attention(hidden_size=6, embedding_size=4, spec=SPEC, **fields)
    return jax.tree.map(jnp.shape, jax.eval_shape(model.init, jax.random.key(0), *CALL)["params"])


def test_what_the_kinds_learn():
    """The content form's parameters are unchanged; each kind of attention adds its own and a context."""
    content, location, hybrid = (shapes(attention=kind)["decoder"] for kind in ("content", "location", "hybrid"))
    assert content == shapes()["decoder"]
    assert set(content) == {"scorer", "bridge", "cell"} and set(location) == {"locator", "bridge", "cell"}
    assert set(hybrid) == {"scorer", "locator", "bridge", "cell"}
    assert location["locator"]["score"]["kernel"] == (6, 512)
    context = hybrid["cell"]["input"]["kernel"][0] - content["cell"]["input"]["kernel"][0]
    assert context == 12  # A state of both directions.


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"attention": "local"}, "attention is 'local'; allowed are content, location, hybrid"),
        ({"cell": "rnn"}, "cell is 'rnn'; allowed are gru, lstm"),
        ({"attention": "location", "max_positions": 3}, "4 positions .padding included. is longer than max_positions"),
    ],
)
def test_errors(fields, message):
    with pytest.raises(ValueError, match=message):
        shapes(**fields)


@pytest.mark.learning
@pytest.mark.thorough
def test_location_learns_to_reverse(learns):
    model = Attention(hidden_size=16, embedding_size=8, attention="location", max_positions=10)
    contract.check_learns(Case("location", model, Learning(0.9, 0.998, extrapolates=False, updates=400), TASK), learns)


def test_places_beyond_training_are_never_trained():
    """No gradient reaches the weights of places that no row of the batch has."""
    model = Attention(hidden_size=6, embedding_size=4, attention="location", max_positions=9)
    case = Case("location", model, Learning(0.9), TASK)
    batch = draw(TASK, jax.random.key(0), jnp.array([3, 5, 1, 4]), contract.CAPACITY)
    gradients = contract.running(case)(batch).gradients
    kernel = np.asarray(gradients["decoder"]["locator"]["score"]["kernel"])
    assert np.all(np.any(kernel[:, :5] != 0, axis=0)) and not np.any(kernel[:, 5:])
