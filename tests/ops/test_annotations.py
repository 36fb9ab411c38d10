"""The shape annotations of operations: documented shapes are accepted, others are rejected. Nothing is computed."""

from __future__ import annotations

import inspect

import jax
import jax.numpy as jnp
import pytest
from beartype import beartype
from jaxtyping import TypeCheckError, jaxtyped

from lenmem import ops

SIZES = {"n": 5, "s": 6, "k": 3, "v": 4, "r": 2, "3": 3}

AXES = {
    "content_weights": "nk rk r",
    "directional_weights": "nn rn",
    "dot_product_weights": "k nk n",
    "erase_and_write": "nk rn rk rk",
    "few_shot": "vk nk nv",
    "geometric_attention": "nk nk nv",
    "geometric_attention_weights": "nn",
    "inverse_square_weights": "k nk n",
    "linear_attention": "sk nk nv",
    "linear_recurrence": "nk nk nv n n",
    "nam_read": "vk k",
    "nam_scan": "nk nv n n",
    "nam_write": "vk k v",
    "nested_read": "vnk k n",
    "pointer_weights": "k nk",
    "rotate": "3 3 ",
    "shifted_keys": "n nk",
    "update_temporal_link": "nn n n",
    "update_usage": "n n rn r",
}
"""Operation -> the axes of its arguments. Axes with the same letter have the same size."""


CHECKED = {name: jaxtyped(typechecker=beartype)(inspect.unwrap(getattr(ops, name))) for name in AXES}


def traced(name, shapes, dtype=jnp.float32):
    return jax.eval_shape(CHECKED[name], *(jax.ShapeDtypeStruct(shape, dtype) for shape in shapes))


@pytest.mark.parametrize("name", AXES)
def test_shapes_are_checked(name: str):
    """Also with a leading axis, which all arguments share. `nested_read` checks the shapes itself."""
    shapes = [tuple(SIZES[axis] for axis in axes) for axes in AXES[name].split(" ")]
    traced(name, shapes)
    traced(name, [(7, *shape) for shape in shapes])
    with pytest.raises(TypeCheckError):
        traced(name, shapes, jnp.int32)
    for argument, axes in enumerate(AXES[name].split(" ")):
        for place, axis in enumerate(axes):
            longer = tuple(size + (i == place) for i, size in enumerate(shapes[argument]))
            if AXES[name].count(axis) > 1:
                with pytest.raises((TypeCheckError, ValueError)):
                    traced(name, [*shapes[:argument], longer, *shapes[argument + 1 :]])
