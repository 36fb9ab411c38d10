"""On causal tasks an answer depends on nothing that comes after it, not even on how much comes."""

from __future__ import annotations

import numpy as np
import pytest

from lenmem import models
from lenmem.models import make, supports
from lenmem.types import Spec
from tests.drawing import drawn
from tests.learning import briefly
from tests.test_bad_input import small

CAUSAL = Spec(vocabulary=4, output_size=5, alignment="aligned", causal=True)
NAMES = [name for name in models.names() if supports(make(name), CAUSAL) is None]


def test_most_networks_can_be_causal():
    assert len(NAMES) > 30 and {"lstm", "transformer", "nam_transformer", "delta_net", "panm"} <= set(NAMES)
    for name in "looped_transformer", "transformer_randomized":
        assert "the task is causal" in str(supports(make(name), CAUSAL))
    assert supports(make("looped_transformer", loops=3), CAUSAL) is None


@pytest.mark.thorough
@pytest.mark.parametrize("name", [*NAMES, "looped_transformer"])
def test_the_answers_of_a_prefix_are_the_first_answers(name):
    kind, preset = models.MODELS[name]
    fields = small(kind, preset) | ({"loops": 3} if name == "looped_transformer" else {})
    model = kind(spec=CAUSAL, **fields)
    inputs, whole = np.array([[1, 2, 3, 0, 1, 2], [3, 3, 0, 1, 2, 1]]), np.ones((2, 6), bool)
    prefix = np.arange(6) < np.array([[3], [4]])
    params = drawn(model.init, inputs, whole, whole)
    apply = briefly(model.apply)
    longer, shorter = (np.asarray(apply({"params": params}, inputs, mask, mask)) for mask in (whole, prefix))
    np.testing.assert_allclose(shorter[prefix], longer[prefix], atol=2e-5)
    other = np.asarray(apply({"params": params}, np.where(prefix, inputs, 3 - inputs), whole, whole))
    np.testing.assert_allclose(other[prefix], longer[prefix], atol=2e-5)
    assert np.all(np.isfinite(longer))
