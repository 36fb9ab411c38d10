"""Addition, reversal and reduction of digits from Neural Attention Memory (Nam & Seo 2022, section 5.3, Figure 1).

https://arxiv.org/abs/2302.09422. Trained on 1 to 10 digits and evaluated on 5 to 10 (the paper's ID set, here the split
`validation`), 11 to 13 (OD-easy, `od_easy`) and 14 to 16 (OD-hard, `test`). A length is a number of digits n. All
lengths of a split occur equally often in its batches.

Each task has two forms:

* The free form (default): the model reads the problem, which ends with a delimiter, then fills the answer slots; only
  the answer is scored. `Completion` puts mask tokens in these slots, as the paper does.
* `whole_sequence=True`, as published: one row of fixed size, in which masks, pads and the end are ordinary tokens.
  Output t belongs to input t, and loss and accuracy run over *all* positions, including copied inputs and pads. The
  metrics `answer_*` cover the answer alone.

A row starts at a random offset in a frame, with pads around it. The frame is as long as the longest row of its split,
the longest example with 10, 13 or 16 digits; for n beyond the splits, as the longest example with n digits.

Known differences from the published code:

* In its palindrome data, input and target of the answer are swapped: the network sees the reversed digits and has to
  output mask tokens, which needs no reversal. We do not copy that bug, so the printed palindrome scores are not
  comparable with ours.
* It has an unused start token, and its OD sets of two tasks have 11 to 14 and 15 to 18 digits; ours are the paper's.
* Its addition never uses the last possible offset.
"""

from __future__ import annotations

from lenmem.tasks.nam.base import DELIMITER, END, MASK, PAD, EqualShares, NamTask, Problem
from lenmem.tasks.nam.digits import Fibonacci, Palindrome, Reduce, bounded_number

__all__ = [
    "DELIMITER",
    "END",
    "MASK",
    "PAD",
    "EqualShares",
    "Fibonacci",
    "NamTask",
    "Palindrome",
    "Problem",
    "Reduce",
    "bounded_number",
]
