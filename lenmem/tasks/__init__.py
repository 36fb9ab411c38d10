"""Tasks by name: `make("copy", train_lengths=(2, 16))`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from lenmem.errors import choices
from lenmem.tasks.addition import Addition
from lenmem.tasks.base import FreshSource, RepeatedSource, Source, Split, Task
from lenmem.tasks.chomsky import (
    BinaryAddition,
    BinaryMultiplication,
    BucketSort,
    CompareOccurrence,
    ComputeSqrt,
    CycleNavigation,
    DivideByTwo,
    DuplicateString,
    EqualRepeats,
    EvenPairs,
    InterlockedPairing,
    MissingDuplicate,
    MissingPalindrome,
    ModularArithmetic,
    ModularArithmeticBrackets,
    NondeterministicStackManipulation,
    OddsFirst,
    ParityCheck,
    ReverseString,
    SolveEquation,
    StackManipulation,
)
from lenmem.tasks.dnc import BinaryAdd, Differentiation, Logic, QuinaryCopy, QuinaryShift, QuinarySort, Search
from lenmem.tasks.dyck import Dyck
from lenmem.tasks.flare import Flare
from lenmem.tasks.groups import WordProblem
from lenmem.tasks.lantm import (
    BigramFlip,
    Copy,
    Double,
    InterleavedAdd,
    LantmTask,
    OddFirst,
    PrioritySort,
    RepeatCopy,
    Reverse,
)
from lenmem.tasks.lra import ByteText, Digits, ListOps, PixelImage
from lenmem.tasks.mathematics import AddOrSub, PlaceValue
from lenmem.tasks.nam import Fibonacci, Palindrome, Reduce
from lenmem.tasks.ndr import Arithmetic, DependencyListOps, TableLookup
from lenmem.tasks.pairs import Pairs
from lenmem.tasks.panm import DynamicRecall, IDSort, Mix, PanmCopy, PanmPrioritySort, PanmReverse
from lenmem.tasks.questions import Babi
from lenmem.tasks.recall import AssociativeRecall
from lenmem.tasks.scan import Scan
from lenmem.tasks.squad import Squad
from lenmem.tasks.stories import Stories
from lenmem.tasks.tracking import TrackedArithmetic, TrackedArithmeticBrackets, TrackedParity
from lenmem.tasks.translation import Translation

_TASKS: dict[str, type[Task]] = {
    "copy": Copy,
    "reverse": Reverse,
    "bigram_flip": BigramFlip,
    "double": Double,
    "interleaved_add": InterleavedAdd,
    "odd_first": OddFirst,
    "repeat_copy": RepeatCopy,
    "priority_sort": PrioritySort,
    "fibonacci": Fibonacci,
    "palindrome": Palindrome,
    "reduce": Reduce,
    "scan": Scan,
    "lra_listops": ListOps,
    "lra_text": ByteText,
    "lra_image": PixelImage,
    "lra_digits": Digits,
    "ctl": TableLookup,
    "arithmetic": Arithmetic,
    "listops": DependencyListOps,
    "dnc_sort": QuinarySort,
    "dnc_copy": QuinaryCopy,
    "dnc_differentiation": Differentiation,
    "dnc_shift": QuinaryShift,
    "dnc_add": BinaryAdd,
    "dnc_search": Search,
    "dnc_logic": Logic,
    "panm_copy": PanmCopy,
    "panm_reverse": PanmReverse,
    "panm_mix": Mix,
    "panm_dynamic_recall": DynamicRecall,
    "panm_priority_sort": PanmPrioritySort,
    "panm_id_sort": IDSort,
    "dyck": Dyck,
    "add_or_sub": AddOrSub,
    "place_value": PlaceValue,
    "babi": Babi,
    "stories": Stories,
    "translation": Translation,
    "squad": Squad,
    "even_pairs": EvenPairs,
    "parity_check": ParityCheck,
    "cycle_navigation": CycleNavigation,
    "modular_arithmetic": ModularArithmetic,
    "modular_arithmetic_brackets": ModularArithmeticBrackets,
    "solve_equation": SolveEquation,
    "reverse_string": ReverseString,
    "stack_manipulation": StackManipulation,
    "duplicate_string": DuplicateString,
    "missing_duplicate": MissingDuplicate,
    "odds_first": OddsFirst,
    "bucket_sort": BucketSort,
    "binary_addition": BinaryAddition,
    "binary_multiplication": BinaryMultiplication,
    "compute_sqrt": ComputeSqrt,
    "compare_occurrence": CompareOccurrence,
    "interlocked_pairing": InterlockedPairing,
    "equal_repeats": EqualRepeats,
    "missing_palindrome": MissingPalindrome,
    "divide_by_two": DivideByTwo,
    "nondeterministic_stack_manipulation": NondeterministicStackManipulation,
    "word_problem": WordProblem,
    "tracked_parity": TrackedParity,
    "tracked_arithmetic": TrackedArithmetic,
    "tracked_arithmetic_brackets": TrackedArithmeticBrackets,
    "associative_recall": AssociativeRecall,
    "addition": Addition,
    "flare": Flare,
    "pairs": Pairs,
}

ABOUT: dict[tuple[str, ...], str] = {
    ("copy",): "the input",
    ("reverse",): "the input backwards",
    ("bigram_flip",): "the input with the tokens of each pair swapped",
    ("double",): "a number times two",
    ("interleaved_add",): "the sum of two numbers whose digits are interleaved",
    ("odd_first",): "the tokens at odd positions, then the tokens at even positions",
    ("repeat_copy",): "the input, repeated several times",
    ("priority_sort",): "the input tokens in order of priority",
    ("fibonacci",): "the sum of two numbers, lowest digit first",
    ("palindrome",): "the digits backwards",
    ("reduce",): "the digits that are not 0",
    ("scan",): "the actions of a command",
    ("lra_listops",): "the value of a long nested expression",
    ("lra_text",): "whether a film review, read as bytes, is positive",
    ("lra_image",): "the class of a picture that is read pixel by pixel",
    ("lra_digits",): "a handwritten digit that is read pixel by pixel, tested on enlarged pictures",
    ("ctl",): "the result of applying fixed functions to a symbol, one after another",
    ("arithmetic",): "the value of nested sums and products, modulo 10",
    ("listops",): "the value of a nested expression, by dependency depth",
    ("dnc_sort",): "numerals in ascending order",
    ("dnc_copy",): "the numerals of the input",
    ("dnc_differentiation",): "the differences between neighbouring numerals",
    ("dnc_shift",): "the numerals rotated by half their number",
    ("dnc_add",): "the sum of two bits, at each step",
    ("dnc_search",): "the positions of a numeral",
    ("dnc_logic",): "the truth value of a formula",
    ("panm_copy", "panm_reverse"): "the input, and the input backwards, without an end symbol",
    ("panm_mix",): "the middle token and the first token in turn",
    ("panm_dynamic_recall",): "the neighbour of a token",
    ("panm_priority_sort",): "the tokens in order of score",
    ("panm_id_sort",): "for each token, the token with the same id",
    ("dyck",): "the brackets that may come next",
    ("add_or_sub", "place_value"): "a sum or difference, or one digit of a number, asked in words",
    ("babi", "stories"): "the answer to a question about a story: bAbI from its files, and drawn stories",
    ("translation",): "a sentence in another language, from parallel texts",
    ("squad",): "the span of a text that answers a question: SQuAD from its files",
    ("even_pairs", "parity_check"): "whether the first and the last bit differ, or the parity of a string",
    ("cycle_navigation",): "where moves on a cycle end",
    ("modular_arithmetic",): "the value of an expression without brackets, modulo 5",
    ("modular_arithmetic_brackets",): "the same with brackets; in `chomsky/modular_arithmetic`",
    ("solve_equation",): "the unknown number of an equation, modulo 5",
    ("stack_manipulation",): "a stack after pushes and pops",
    ("nondeterministic_stack_manipulation",): "the same, with one push or pop that is given last",
    ("reverse_string", "duplicate_string", "odds_first"): "bits in reverse, twice, or those at odd places first",
    ("missing_duplicate", "missing_palindrome"): "the hidden symbol of a repeated string, or of a palindrome",
    ("interlocked_pairing",): "the string, then the string with its two symbols exchanged",
    ("compare_occurrence", "equal_repeats"): "which symbol is more frequent, or which runs are of the same length",
    ("divide_by_two",): "a one, moved to half its position",
    ("bucket_sort",): "symbols in ascending order",
    ("binary_addition", "binary_multiplication", "compute_sqrt"): "a sum, a product or a root, in bits",
    ("word_problem",): "the running product of elements of a finite group",
    (
        "tracked_parity",
        "tracked_arithmetic",
        "tracked_arithmetic_brackets",
    ): "parity and arithmetic, scored by accuracy above chance as in the work on state tracking",
    ("associative_recall",): "the value of each queried key",
    ("addition",): "the sum of two long numbers: plain, with reversed digits, or with hints of the place values",
    ("flare",): "whether a string belongs to a formal language, from the files of FLaRe",
    ("pairs",): "your own inputs and answers, from a file or from memory",
}
"""names -> the answer of the task."""


def names() -> tuple[str, ...]:
    """The names that `make` accepts, in the order of the papers."""
    return tuple(_TASKS)


def name_of(task: Task) -> str:
    """The name of a task in `make`; the name of its class if it is not registered there."""
    kind = type(task)
    return next((name for name, known in _TASKS.items() if known is kind), kind.__name__)


def make(name: str, **fields: Any) -> Task:
    """The task with this name and these `fields`. Lists are converted to tuples.

    Raises:
        ValueError: for an unknown task or field. The message gives the nearest name and the allowed ones.
    """
    if name not in _TASKS:
        raise ValueError(_unknown("task", name, _TASKS))
    task = _TASKS[name]
    allowed = [field.name for field in dataclasses.fields(task) if field.init]
    for field in fields:
        if field not in allowed:
            raise ValueError(_unknown(f"field of the task {name!r}", field, allowed))
    return task(**{key: tuple(value) if isinstance(value, list) else value for key, value in fields.items()})


def _unknown(kind: str, got: str, allowed: Iterable[str]) -> str:
    return f"{got!r} is not a {kind}.{choices(got, allowed, listed='lenmem list' if kind == 'task' else '')}"


__all__ = [
    "ABOUT",
    "AddOrSub",
    "Addition",
    "Arithmetic",
    "AssociativeRecall",
    "Babi",
    "BigramFlip",
    "BinaryAdd",
    "BinaryAddition",
    "BinaryMultiplication",
    "BucketSort",
    "ByteText",
    "CompareOccurrence",
    "ComputeSqrt",
    "Copy",
    "CycleNavigation",
    "DependencyListOps",
    "Differentiation",
    "Digits",
    "DivideByTwo",
    "Double",
    "DuplicateString",
    "Dyck",
    "DynamicRecall",
    "EqualRepeats",
    "EvenPairs",
    "Fibonacci",
    "Flare",
    "FreshSource",
    "IDSort",
    "InterleavedAdd",
    "InterlockedPairing",
    "LantmTask",
    "ListOps",
    "Logic",
    "MissingDuplicate",
    "MissingPalindrome",
    "Mix",
    "ModularArithmetic",
    "ModularArithmeticBrackets",
    "NondeterministicStackManipulation",
    "OddFirst",
    "OddsFirst",
    "Pairs",
    "Palindrome",
    "PanmCopy",
    "PanmPrioritySort",
    "PanmReverse",
    "ParityCheck",
    "PixelImage",
    "PlaceValue",
    "PrioritySort",
    "QuinaryCopy",
    "QuinaryShift",
    "QuinarySort",
    "Reduce",
    "RepeatCopy",
    "RepeatedSource",
    "Reverse",
    "ReverseString",
    "Scan",
    "Search",
    "SolveEquation",
    "Source",
    "Split",
    "Squad",
    "StackManipulation",
    "Stories",
    "TableLookup",
    "Task",
    "TrackedArithmetic",
    "TrackedArithmeticBrackets",
    "TrackedParity",
    "Translation",
    "WordProblem",
    "make",
    "name_of",
    "names",
]
