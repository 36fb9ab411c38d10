"""Associative recall: what each part of an input is, answers by a dictionary, and where queries stand."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lenmem import tasks
from lenmem.tasks.base import draw

LENGTHS = (1, 2, 5, 8)


def rows(capacity=8, **fields):
    """(pairs, input, targets, scored) of some examples, without padding."""
    small = {"vocabulary": 40, "train_lengths": (1, 4), "test_lengths": (5, 8)}
    task = tasks.make("associative_recall", **(small | fields))
    lengths = np.repeat(LENGTHS, 8)
    batch = jax.jit(lambda key: draw(task, key, jnp.asarray(lengths), capacity))(jax.random.key(0))
    for i, pairs in enumerate(lengths.tolist()):
        size = pairs * task.spacing
        assert np.asarray(batch.input_mask[i]).sum() == np.asarray(batch.target_mask[i]).sum() == size
        arrays = (np.asarray(x[i]) for x in (batch.inputs, batch.targets, batch.score_mask))
        yield (pairs, *(x[:size].tolist() for x in arrays))
        assert not any(np.asarray(x[i, size:]).any() for x in (batch.inputs, batch.targets, batch.score_mask))


@pytest.mark.parametrize("fields", [{}, {"spacing": 4}, {"random_fillers": True}, {"exponent": 1.0, "spacing": 7}])
def test_each_key_is_asked_for_once(fields):
    """Distinct keys and values, then each key in a place of its own; the answer is that of a dictionary."""
    for pairs, inputs, targets, scored in rows(**fields):
        keys, values = inputs[0 : 2 * pairs : 2], inputs[1 : 2 * pairs : 2]
        assert len(set(keys)) == len(set(values)) == pairs
        assert all(1 <= key < 20 for key in keys) and all(20 <= value < 40 for value in values)
        asked = [place for place, yes in enumerate(scored) if yes]
        assert len(asked) == pairs and all(place >= 2 * pairs and place % 2 == 0 for place in asked)
        meaning = dict(zip(keys, values, strict=True))
        assert {inputs[place] for place in asked} == set(keys)
        for place, token in enumerate(inputs):
            assert targets[place] == (meaning[token] if place in asked else 0)
            if place >= 2 * pairs and place not in asked and not fields.get("random_fillers"):
                assert token == 0


def test_more_capacity_changes_only_the_padding():
    """Places are drawn for the capacity, but those of the same numbers are the same."""
    assert list(rows(8)) == list(rows(11))


def test_most_queries_are_close_behind_the_pairs():
    """With the published exponent place g has a share of about 1 / g; with 1 all have the same."""
    task = tasks.make("associative_recall", vocabulary=40, train_lengths=(1, 1), test_lengths=(1, 1))
    for exponent, first in ((0.01, 1 / sum(1 / g for g in range(1, 8))), (1.0, 1 / 7)):
        chosen = dataclasses.replace(task, exponent=exponent)
        batch = jax.jit(lambda key, chosen=chosen: draw(chosen, key, jnp.ones(4000, int), 1))(jax.random.key(0))
        share = np.asarray(batch.score_mask)[:, 2].mean()
        assert share == pytest.approx(first, abs=0.03)


def test_the_spec():
    """Chance is one of the values, as in the paper 1 / 4096."""
    spec = tasks.make("associative_recall").spec
    assert (spec.vocabulary, spec.alignment, spec.causal, spec.chance) == (8192, "aligned", True, 1 / 4096)
    assert tasks.make("associative_recall").shapes(4) == (64, 64)


def test_too_few_keys():
    with pytest.raises(ValueError, match="a vocabulary of 20 tokens has 9 keys, too few for 10 pairs"):
        tasks.make("associative_recall", vocabulary=20, test_lengths=(5, 10), train_lengths=(1, 4))
