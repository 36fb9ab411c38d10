"""Two languages of expressions for `lenmem.data.trees`: arithmetic and ListOps."""

from __future__ import annotations

import numpy as np

from lenmem.data.trees import Language

ARITHMETIC_TOKENS = (*"()*+", *"0123456789")
LISTOPS_TOKENS = (*"0123456789", "[MAX", "[MED", "[MIN", "[SM", "]")
_OPEN, _CLOSE, _TIMES, _PLUS, _ZERO = range(5)
_MAX, _MED, _MIN, _SM, _END = range(10, 15)


def arithmetic(share: float, clean: bool = False) -> Language:
    """Sums and products modulo 10, `((4*7)+2)`. Both operands matter, so depth and height are the same.

    Published: a tree that is not deep enough always becomes the right operand. `clean`: either operand.
    """

    def rule(token: np.ndarray, counts: np.ndarray, value: np.ndarray, depth: np.ndarray):
        del counts
        left, right = value[:, 0], value[:, 1]
        return np.where(token == _TIMES, left * right, left + right) % 10, depth.max(1)

    def slots(new: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return (0 if clean else 1) * new, new + 1

    return Language(_ZERO, (_PLUS, _TIMES), _CLOSE, (2, 2), (1, 1), slots, rule, share, weight=3, open=_OPEN)


def listops(share: float, most_arguments: int, clean: bool = False) -> Language:
    """MIN, MAX, MED (rounded down) and SM (sum modulo 10) of 2 or more arguments, `[MAX 2 [MIN 4 7 ] 0 ]`.

    The dependency depth counts only the arguments that determine an operator's value: for MIN and MAX the first of the
    smallest or largest, for MED the one or two in the middle (equal arguments in their order), for SM all.

    Published: an operator adds three to the length, and a tree that is not deep enough is never the last argument of
    the new operator. `clean`: an operator adds two, its tokens, and the tree may be any argument.
    """
    column = np.arange(most_arguments)

    def rule(token: np.ndarray, counts: np.ndarray, value: np.ndarray, depth: np.ndarray):
        real = column[: value.shape[1]] < counts[:, None]
        result, deepest = np.empty(token.size, np.int8), np.empty(token.size, np.int8)
        for operator in (_MAX, _MED, _MIN, _SM):
            at = np.flatnonzero(token == operator)
            values, depths, mask = value[at], depth[at], real[at]
            row = np.arange(at.size)
            if operator == _SM:
                result[at] = (values * mask).sum(1) % 10
                deepest[at] = (depths * mask).max(1, initial=0)
                continue
            if operator == _MED:
                order = np.argsort(np.where(mask, values, 10), axis=1, kind="stable")
                chosen = order[row, (counts[at] - 1) // 2], order[row, counts[at] // 2]
            elif operator == _MAX:
                chosen = (np.where(mask, values, -1).argmax(1),) * 2
            else:
                chosen = (np.where(mask, values, 10).argmin(1),) * 2
            result[at] = (values[row, chosen[0]] + values[row, chosen[1]]) // 2
            deepest[at] = np.maximum(depths[row, chosen[0]], depths[row, chosen[1]])
        return result, deepest

    def slots(new: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return 0 * new, new + int(clean)

    operators, added = (_MAX, _MED, _MIN, _SM), (2, most_arguments - 1)
    weight = 2 if clean else 3
    return Language(0, operators, _END, (2, most_arguments), added, slots, rule, share, weight)


def single_operations() -> dict[str, np.ndarray]:
    """The 200 arithmetic expressions with one operator, as `collect` returns them."""
    operator, left, right = (axis.ravel() for axis in np.indices((2, 10, 10)))
    token = np.array([_PLUS, _TIMES])[operator]
    opened, closed = np.full((2, 200), [[_OPEN], [_CLOSE]])
    return {
        "tokens": np.stack([opened, left + _ZERO, token, right + _ZERO, closed], 1).astype(np.uint8).ravel(),
        "lengths": np.full(200, 5, np.int32),
        "values": (np.where(operator, left * right, left + right) % 10).astype(np.uint8),
        "depths": np.full(200, 2, np.uint8),
    }
