"""Addition, reversal and reduction of digits from Neural Attention Memory (Nam & Seo 2023, section 5.3, Figure 1).

https://arxiv.org/abs/2302.09422. Trained on 1 to 10 digits and evaluated on 5 to 10 (the paper's ID set, here the split
`validation`), 11 to 13 (OD-easy, `od_easy`) and 14 to 16 (OD-hard, `test`). A length is a number of digits n. All
lengths of a split occur equally often in its batches.

Each task has two forms:

* The free form (default): the model reads the problem, which ends with a delimiter, then fills the answer's slots; the
  answer is scored. `Completion` fills these slots with mask tokens, as the paper does.
* `whole_sequence=True`, as published: one row of fixed size, in which masks, pads and the end are ordinary tokens.
  Answer t belongs to input t, and loss and accuracy cover *all* positions, including copied inputs and pads. The
  metrics `answer_*` cover the answer alone.

A row is placed at a random offset, between pads, in a frame with the size of the longest row of its split: that of the
longest example with 10, 13 or 16 digits, or with n digits if n is beyond the splits.

Known differences from the published code:

* In its palindrome data, input and target of the answer are swapped: the network sees the reversed digits and must
  predict mask tokens, which requires no reversal. This bug is not reproduced, so the printed palindrome numbers cannot
  be compared.
* It has an unused start token, and its OD sets of two tasks have 11 to 14 and 15 to 18 digits; we use the paper's.
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
