"""Models by name."""

from __future__ import annotations

import flax.linen as nn
import pytest

from lenmem import models
from lenmem.types import Spec

SPEC = Spec(vocabulary=4, output_size=5, shared_ids=True)
COLUMNS = Spec(vocabulary=4, output_size=5, answers_are_columns=True)
ALIGNED = Spec(vocabulary=4, output_size=5, outputs="tokens", alignment="aligned")
CAUSAL = Spec(vocabulary=4, output_size=5, alignment="aligned", causal=True)


def test_every_name_makes_a_model():
    for name in models.names():
        spec = COLUMNS if name.startswith("bert_span") else ALIGNED if name == "answer_automaton" else SPEC
        model = models.make(name, spec)
        assert model.spec == spec
        assert models.supports(model, spec) is None
        assert models.make(name).spec is None


def test_presets_and_fields():
    assert models.make("lantm_s").weighting == "softmax"
    assert models.make("lantm_s", weighting="inverse_square").weighting == "inverse_square"
    assert models.make("lstm", hidden_size=3, layers=2).layers == 2


def test_errors_name_the_nearest():
    with pytest.raises(ValueError, match="Did you mean .*'slantm'"):
        models.make("slantn")
    with pytest.raises(ValueError, match=r"no field 'hiden_size'. Did you mean 'hidden_size'"):
        models.make("lstm", hiden_size=3)
    with pytest.raises(ValueError, match="no model is called 'zzz'. There are .*, such as lantm"):
        models.make("zzz")


def test_a_model_that_cannot_take_the_task_says_why():
    with pytest.raises(ValueError, match="'attention' cannot take the task: answers come after the whole input"):
        models.make("attention", CAUSAL)
    for name in ("lantm", "lstm", "transformer", "ram"):
        models.make(name, CAUSAL)


def test_a_model_goes_by_its_most_specific_name():
    for name in models.names():
        assert models.name_of(models.make(name)) == name
    assert models.name_of(models.make("lantm", hidden_size=7)) == "lantm"
    assert models.name_of(nn.Dense(3)) is None
