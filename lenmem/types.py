"""Common types of lenmem: batches of pairs of sequences, and the description of a task.

Axis glossary. A module that uses a letter differently says so in its docstring.

    B  examples of a batch            S  training seeds run in one program
    N  input slots of a row           M  answer slots of a row
    T  time steps of a scan           K  width of an output (classes, bits or values)
    D  width of a float input         d, H  width of a hidden state
    R  heads                          W  width (number of columns) of a memory row

This module imports nothing else from lenmem; every other module may import it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, Protocol

import chex
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike


class Batch(NamedTuple):
    """Pairs of sequences. Without the leading axis B it is one `Example`.

    Masks are prefixes: a row consists of its real positions, then padding. Padding contains arbitrary values, and no
    result may depend on them.
    """

    inputs: jax.Array
    """int[B, N] token ids, or float[B, N, D] laid out as `[one-hot | channels]`."""
    input_mask: jax.Array
    """bool[B, N]: the real input positions."""
    targets: jax.Array
    """int[B, M] token ids, or float[B, M, K]."""
    target_mask: jax.Array
    """bool[B, M]: the answer slots that the model must fill. Their number must not reveal anything that the model
    cannot know."""
    score_mask: jax.Array
    """bool[B, M]: the slots that are scored (a subset of `target_mask`). Models never see it."""


Example = Batch


class Step(NamedTuple):
    """The input of a recurrent cell at one time step."""

    inputs: jax.Array
    """float[B, d]: the embedded input."""
    decoding: jax.Array
    """bool[B]: True from the first answer step of a row on."""
    valid: jax.Array
    """bool[B]: the step is real; False after a row's last answer."""
    deterministic: bool = True
    """True outside training: no dropout, and no random draws. A constant of the program, not an array."""


jax.tree_util.register_pytree_with_keys(
    Step,
    lambda step: ([(jax.tree_util.GetAttrKey(name), getattr(step, name)) for name in Step._fields[:-1]], step[-1]),
    lambda deterministic, arrays: Step._make([*arrays, deterministic]),
)

STREAMS = ("dropout", "address", "gate")
"""The random streams that a network may use in training, in addition to `params`."""
SOWN = ("traces", "losses")
"""The collections to which a network may sow: values that can be drawn, and values that are added to the loss."""


class PositionRule(Protocol):
    """Positions that a task gives to its tokens, for `positions="given"`. Rules are hashable data, such as frozen
    dataclasses."""

    def ids(self, inputs: jax.Array, input_mask: jax.Array, target_mask: jax.Array) -> tuple[jax.Array, jax.Array]:
        """int[B, N] token ids, bool[B, N], bool[B, M] -> positions int[B, N] of the inputs and int[B, M] of the answer
        slots. 0: none; others are at least 1, and can be shifted by the same number."""
        ...

    def largest(self, inputs: int, answers: int) -> int:
        """The largest position in rows of that many inputs and answer slots."""
        ...


@dataclasses.dataclass(frozen=True)
class Spec:
    """The description of a task for a model. Models get no other information about the task."""

    vocabulary: int
    """Number of input token ids, 0 .. vocabulary - 1. 0 for inputs without tokens."""
    output_size: int
    """K: number of classes, bits or values of an answer slot."""
    channels: int = 0
    """Number of float channels in addition to the token: inputs are then float[N, vocabulary + channels], the one-hot
    token first."""
    outputs: Literal["tokens", "multi_hot", "real"] = "tokens"
    """Type of an answer slot."""
    shared_ids: bool = False
    """Answer ids below `vocabulary` mean the same tokens as input ids."""
    alignment: Literal["free", "aligned"] = "free"
    """`aligned`: answer slot t belongs to input position t."""
    causal: bool = False
    """Answer slot t may depend only on inputs 0 .. t."""
    delimited: bool = False
    """The input marks its own end, so no delimiter step is added."""
    length_rule: Literal["given", "end"] = "given"
    """`given`: `target_mask` is exactly the answer. `end`: the answer stops with `end_id`."""
    end_id: int | None = None
    """The end symbol among the answer ids, if there is one."""
    chance: float = 0.0
    """Expected token accuracy of a model that has only learned the most frequent answer; where a paper takes chance to
    be one over the number of answers, that."""
    ceiling: float | None = None
    """Best possible token accuracy on the split `test` if the task is ambiguous; None: 1."""
    answers_are_columns: bool = False
    """Whether answer ids are columns of the input, 0 .. N - 1; `output_size` is then the largest number of columns."""
    separator: int | None = None
    """The token that ends the first of two segments of an input, for models that tell them apart."""
    position_rule: PositionRule | None = None
    """Positions that the task gives to inputs and answer slots, besides their order."""
    computation_steps: int = 0
    """Number of computation tokens that a model has put behind the inputs, for each of them."""
    shapes: Callable[[int], tuple[int, int]] | None = dataclasses.field(default=None, repr=False, compare=False)
    """capacity -> (N, M): the static sizes of an example of at most that length (in the task's unit)."""

    @property
    def takes_tokens(self) -> bool:
        """Whether inputs are plain token ids (int[B, N])."""
        return self.vocabulary > 0 and self.channels == 0

    @property
    def single_answer(self) -> bool | None:
        """Whether there is one answer slot at every length; None if `shapes` is not given."""
        return None if self.shapes is None else self.shapes(16)[1] == 1

    @property
    def input_width(self) -> int:
        """Number of columns of an input as floats: one-hot token, then channels."""
        return self.vocabulary + self.channels


def check_batch(spec: Spec, inputs: Any, input_mask: Any, target_mask: Any, targets: Any = None) -> None:
    """Raises ValueError, naming both shapes, if the arrays of a batch do not fit each other or the task, if token ids
    are not integers, and if there are no rows, input columns or answer slots.

    Shapes are known when a program is traced, so the check costs nothing at run time.
    """
    if spec.takes_tokens:
        _check_shape("inputs", inputs, ("B", "N"), "token ids")
        if not jnp.issubdtype(inputs.dtype, jnp.integer):
            raise ValueError(f"inputs are {inputs.dtype}; token ids must be integers")
    else:
        about = f"for {spec.vocabulary} tokens and {spec.channels} channels"
        _check_shape("inputs", inputs, ("B", "N", spec.input_width), about)
    _check_shape("input_mask", input_mask, inputs.shape[:2], f"as inputs is {list(inputs.shape)}")
    _check_shape("target_mask", target_mask, (inputs.shape[0], "M"), f"as inputs is {list(inputs.shape)}")
    if not (input_mask.size and target_mask.size):
        raise ValueError(
            f"input_mask has shape {list(input_mask.shape)} and target_mask {list(target_mask.shape)}; "
            "a batch has at least one row, one input column and one answer slot"
        )
    if targets is not None:
        values = () if spec.outputs == "tokens" else (spec.output_size,)
        about = f"as target_mask is {list(target_mask.shape)} and the answers are {spec.outputs.replace('_', '-')}"
        _check_shape("targets", targets, (*target_mask.shape, *values), about)


def check_outputs(spec: Spec, outputs: Any, target_mask: Any) -> None:
    """Raises ValueError, naming both shapes, if a model does not return `output_size` numbers per answer slot."""
    about = f"as target_mask is {list(target_mask.shape)} and output_size is {spec.output_size}"
    _check_shape("the model's output", outputs, (*target_mask.shape, spec.output_size), about)


def at_least_float32(outputs: jax.Array) -> jax.Array:
    """Outputs of a network that computes in half precision as float32, for losses and metrics; others as they are."""
    return outputs.astype(jnp.promote_types(outputs.dtype, jnp.float32))


def _check_shape(name: str, array: Any, wanted: Sequence[int | str], about: str) -> None:
    """Checks a shape. Letters stand for any size."""
    try:
        chex.assert_shape(array, [size if isinstance(size, int) else None for size in wanted])
    except AssertionError:
        sizes = ", ".join(map(str, wanted))
        raise ValueError(f"{name} has shape {list(array.shape)}; it must be [{sizes}], {about}") from None


PyTree = Any
Dtype = DTypeLike | None
"""Computation and parameter dtypes of a module; None: the dtype of its inputs and parameters."""


def is_zero(value: Any) -> bool:
    """Whether a number is a concrete zero. A traced number of a sweep is not, so the part that it scales is
    computed."""
    return isinstance(value, int | float) and value == 0
