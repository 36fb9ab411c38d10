"""The seven tasks of the state-space-constrained DNC (Ofner & Kern, arXiv 2110.09138v2, supplement A).

A network reads L steps. A control channel then marks the end of the input, and the network answers; with a signal
channel it marks the end of its answer. Trained at lengths 5 to 15 (one per batch), tested at 2 to 100 and, with more
memory, up to 1000.

Layout, with steps counted from 1 and a sequence of length L:

    sort, copy, differentiation, shift, add
        inputs   1 .. L the sequence; L + 1 the flag: control 1, data 0
        answer   L + 2 .. 2L + 1 the result, signal 0; 2L + 2 signal 1
    search
        inputs   1 .. L the sequence; L + 1 a blank and L + 2 the query, both with control 1
        answer   from L + 3 on one matching position per step, signal 0; then signal 1
    logic
        inputs   1 .. L the formula; L + 1 the flag
        answer   L + 2 the truth value

All tasks have separate answer slots and `delimited=True`: the flag (in search the query) is the last input. Recurrent
interfaces therefore add no delimiter, and all other models can take the tasks too. The step at which the answer begins
depends on the model: an interface with `delay=1` has the layout above, with `delay=0` it is one step earlier.

Numbers are values on channels, [sequence.. | control] in the input and [result.. | signal] in the answer; the loss is
the mean squared error over channels and answer steps. A formula consists of tokens, one of which is the flag; as
one-hot vectors this is the paper's [tokens | control]. Its answer is the class `F` or `T`, and the loss is the
cross-entropy.

Details that are missing in the paper, or in our copy of its text, are fields; their defaults are marked as our choice.
"""

from __future__ import annotations

from lenmem.tasks.dnc.base import DncTask, growing_lengths
from lenmem.tasks.dnc.channels import (
    BASE,
    BinaryAdd,
    ChannelTask,
    Differentiation,
    Problem,
    QuinaryCopy,
    QuinaryShift,
    QuinarySort,
    Search,
    SequenceTask,
    result_slots,
)
from lenmem.tasks.dnc.logic import CLOSE, FALSE, FLAG, NOT, OPEN, TRUE, TRUTH, Logic, formula_counts

__all__ = [
    "BASE",
    "CLOSE",
    "FALSE",
    "FLAG",
    "NOT",
    "OPEN",
    "TRUE",
    "TRUTH",
    "BinaryAdd",
    "ChannelTask",
    "Differentiation",
    "DncTask",
    "Logic",
    "Problem",
    "QuinaryCopy",
    "QuinaryShift",
    "QuinarySort",
    "Search",
    "SequenceTask",
    "formula_counts",
    "growing_lengths",
    "result_slots",
]
