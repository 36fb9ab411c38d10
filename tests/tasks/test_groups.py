"""Word problems: the laws of each group, running products by other means, and names that are no groups."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lenmem import tasks
from lenmem.tasks.base import draw
from lenmem.tasks.groups import multiplication_table

ORDERS = {"Z1": 1, "Z2": 2, "Z60": 60, "S1": 1, "A2": 1, "S3": 6, "A4": 12, "S4": 24, "A5": 60, "S5": 120, "A4xZ5": 60}


@pytest.mark.parametrize(("group", "order"), ORDERS.items())
def test_the_laws_of_a_group(group, order):
    """The identity is 0, each row and column has each element once, and products are associative."""
    table = multiplication_table(group)
    everything = np.arange(order)
    assert table.shape == (order, order)
    np.testing.assert_array_equal(table[0], everything)
    np.testing.assert_array_equal(table[:, 0], everything)
    np.testing.assert_array_equal(np.sort(table, axis=0), np.sort(table, axis=1).T)
    np.testing.assert_array_equal(np.sort(table, axis=1), np.tile(everything, (order, 1)))
    a, b, c = np.random.default_rng(0).integers(0, order, (3, 500))
    np.testing.assert_array_equal(table[table[a, b], c], table[a, table[b, c]])


@pytest.mark.parametrize(("group", "commutes"), [("Z60", True), ("A4xZ5", False), ("A5", False), ("S5", False)])
def test_which_commute(group, commutes):
    table = multiplication_table(group)
    assert np.array_equal(table, table.T) == commutes


def test_a5_is_simple_and_a4_is_not():
    """No proper set of whole conjugacy classes is a subgroup of A5: the reason why it is hard to track."""

    def normal_orders(group):
        table = multiplication_table(group)
        inverse = np.argmin(table, axis=1)
        found = set()
        for element in range(1, len(table)):
            made = {0} | {int(table[table[g, element], inverse[g]]) for g in range(len(table))}
            while len(more := {int(table[a, b]) for a, b in itertools.product(made, repeat=2)}) > len(made):
                made = more
            found.add(len(made))
        return found

    assert normal_orders("A5") == {60} and normal_orders("A4") == {4, 12}


def test_targets_are_running_products_of_permutations():
    """By composing permutations; the product so far applies its last element first."""
    task = tasks.make("word_problem", group="S4")
    batch = jax.jit(lambda key: draw(task, key, jnp.array([1, 5, 9]), 12))(jax.random.key(0))
    elements = list(itertools.permutations(range(4)))
    for row, length in enumerate((1, 5, 9)):
        product = tuple(range(4))
        for t in range(length):
            product = tuple(product[image] for image in elements[int(batch.inputs[row, t])])
            assert elements[int(batch.targets[row, t])] == product
        assert not batch.inputs[row, length:].any() and not batch.targets[row, length:].any()


def test_more_capacity_changes_only_the_padding():
    task = tasks.make("word_problem")
    sample = jax.jit(task.sample, static_argnums=2)
    one, other = (sample(jax.random.key(2), 6, capacity) for capacity in (6, 11))
    for a, b in zip(one, map(np.asarray, other), strict=True):
        np.testing.assert_array_equal(a, b[:6])


def test_the_spec():
    spec = tasks.make("word_problem", group="A5").spec
    assert (spec.vocabulary, spec.output_size, spec.alignment, spec.causal) == (60, 60, "aligned", True)
    assert spec.chance == 1 / 60


@pytest.mark.parametrize(
    ("group", "message"),
    [
        ("D4", "group is 'D4'; it must be Zn, Sn or An with a number n, or a product such as A4xZ5"),
        ("S", "group is 'S'"),
        ("Z0", "group is 'Z0'"),
        ("A4x", "group is 'A4x'"),
        ("S7", "the group S7 has more than 720 elements"),
        ("Z27xZ27", "the group Z27xZ27 has more than 720 elements"),
    ],
)
def test_names_that_are_no_groups(group, message):
    with pytest.raises(ValueError, match=message):
        tasks.make("word_problem", group=group)
