"""The papers' mathematics: arrays in, arrays out. Every operation by its flat name."""

from lenmem.ops.lie import (
    bounded,
    dot_product_weights,
    inverse_square_weights,
    masked_softmax,
    rotate,
    softmax_distance_weights,
    squared_distances,
    strengthened,
    translate,
    unit,
)
from lenmem.ops.positions import sinusoidal
from lenmem.ops.tape import sharpen, shifted_keys

__all__ = [
    "bounded",
    "dot_product_weights",
    "inverse_square_weights",
    "masked_softmax",
    "rotate",
    "sharpen",
    "shifted_keys",
    "sinusoidal",
    "softmax_distance_weights",
    "squared_distances",
    "strengthened",
    "translate",
    "unit",
]
