"""The tasks of Delétang et al., "Neural Networks and the Chomsky Hierarchy" (ICLR 2023, arXiv 2207.02098).

The paper has fifteen tasks. Six more are in the first versions of its code, without printed scores:
`compare_occurrence`, `interlocked_pairing`, `equal_repeats`, `missing_palindrome`, `divide_by_two`,
`nondeterministic_stack_manipulation`.

Training uses lengths 1 to 40 and the test 41 to 500; a length is a number of input symbols. An answer is a single
symbol, or a string whose number of slots follows from the length of the input. An answer that may be shorter ends with
an end symbol and is padded with 0. As in the published code, padding is trained but not scored.

The paper's score is the token accuracy, averaged over examples and then over the lengths 41 to 500
(`LengthCurve.mean_beyond`). Where the paper and its code differ, the task follows the paper and says so.
"""

from __future__ import annotations

from lenmem.tasks.chomsky.base import (
    ChomskyTask,
)
from lenmem.tasks.chomsky.context_free import (
    CompareOccurrence,
    DivideByTwo,
    EqualRepeats,
    MissingPalindrome,
    ModularArithmeticBrackets,
    NondeterministicStackManipulation,
    ReverseString,
    SolveEquation,
    StackManipulation,
)
from lenmem.tasks.chomsky.context_sensitive import (
    BinaryAddition,
    BinaryMultiplication,
    BucketSort,
    ComputeSqrt,
    DuplicateString,
    InterlockedPairing,
    MissingDuplicate,
    OddsFirst,
)
from lenmem.tasks.chomsky.regular import (
    CycleNavigation,
    EvenPairs,
    ModularArithmetic,
    ParityCheck,
)

__all__ = [
    "BinaryAddition",
    "BinaryMultiplication",
    "BucketSort",
    "ChomskyTask",
    "CompareOccurrence",
    "ComputeSqrt",
    "CycleNavigation",
    "DivideByTwo",
    "DuplicateString",
    "EqualRepeats",
    "EvenPairs",
    "InterlockedPairing",
    "MissingDuplicate",
    "MissingPalindrome",
    "ModularArithmetic",
    "ModularArithmeticBrackets",
    "NondeterministicStackManipulation",
    "OddsFirst",
    "ParityCheck",
    "ReverseString",
    "SolveEquation",
    "StackManipulation",
]
