"""The papers' mathematics: arrays in, arrays out. Every operation by its flat name."""

from lenmem.ops.geometric import geometric_attention, geometric_attention_logits, geometric_attention_weights
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
from lenmem.ops.outer_product import (
    linear_attention,
    nam_read,
    nam_scan,
    nam_write,
    nested_read,
    normalized_outer_product_attention,
    normalized_outer_product_step,
    one_shot,
    outer_product_memory,
    outer_product_read,
    tensor_memory,
)
from lenmem.ops.positions import sinusoidal
from lenmem.ops.tape import sharpen, shifted_keys

__all__ = [
    "bounded",
    "dot_product_weights",
    "geometric_attention",
    "geometric_attention_logits",
    "geometric_attention_weights",
    "inverse_square_weights",
    "linear_attention",
    "masked_softmax",
    "nam_read",
    "nam_scan",
    "nam_write",
    "nested_read",
    "normalized_outer_product_attention",
    "normalized_outer_product_step",
    "one_shot",
    "outer_product_memory",
    "outer_product_read",
    "rotate",
    "sharpen",
    "shifted_keys",
    "sinusoidal",
    "softmax_distance_weights",
    "squared_distances",
    "strengthened",
    "tensor_memory",
    "translate",
    "unit",
]
