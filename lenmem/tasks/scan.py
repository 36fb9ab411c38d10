"""SCAN: commands to actions (Lake & Baroni 2018, https://arxiv.org/abs/1711.00350), split by the number of actions.

The 20,910 pairs are generated from the grammar. The length split trains on the 16,990 pairs with at most 22 actions,
and tests on the other 3,920; Newman et al. (2020) move the cut-off up to 40. A length is a number of actions; 23, 29
and some others do not occur.

Some of the training pairs are held out for validation, as in Csordás et al. (2021). Neural Attention Memory trains on
all of them (`validation_share=0`) and, as its authors state, selects on the test set.

`whole_line=True` is the form of Neural Attention Memory (section 5.3): a line `IN: <command> OUT: <actions> <eos>`. The
input shows everything before `OUT:` and then placeholders `_`; the target has placeholders up to `OUT:`. Output t
belongs to input t. Loss and accuracy run over all positions, including placeholders after the end, up to the longest
line (in the published code that of the batch, here that of the split). The metrics `answer_*` cover only actions and
end.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from lenmem.data.rows import Rows, make_rows
from lenmem.data.scan import Pair, read_file, read_tfds
from lenmem.fields import UnitInterval, between
from lenmem.tasks.base import Split, exact_match, token_accuracy
from lenmem.tasks.rows import FileTask, SplitSeed, split_off
from lenmem.types import Batch, Example, Spec

WORDS = (
    *("walk", "look", "run", "jump", "turn", "left", "right"),
    *("opposite", "around", "twice", "thrice", "and", "after"),
)
ACTIONS = ("I_WALK", "I_LOOK", "I_RUN", "I_JUMP", "I_TURN_LEFT", "I_TURN_RIGHT")
END = len(ACTIONS)
"""Answer id of the end symbol."""
LINE_IN, LINE_OUT, LINE_BLANK, LINE_END = (len(WORDS) + len(ACTIONS) + i for i in range(4))
"""Ids of `IN:`, `OUT:`, `_` and `<eos>` in the whole-line form, after the words and the actions."""
MOST_WORDS, MOST_ACTIONS = 9, 48


def grammar() -> list[Pair]:
    """All pairs (words, actions).

        C -> S | S and S | S after S
        S -> V | V twice | V thrice
        V -> D | D' opposite T | D' around T | walk | look | run | jump
        D -> D' T      D' -> walk | look | run | jump | turn      T -> left | right

    `turn` alone does nothing; `opposite` turns twice and acts, `around` turns and acts four times; in `x after y`, y
    comes first.
    """
    phrases: list[Pair] = [((word,), (action,)) for word, action in zip(WORDS[:4], ACTIONS, strict=False)]
    for word, side in itertools.product(WORDS[:5], ("left", "right")):
        turn = (f"I_TURN_{side.upper()}",)
        act = () if word == "turn" else (f"I_{word.upper()}",)
        phrases += [
            ((word, side), turn + act),
            ((word, "opposite", side), turn * 2 + act),
            ((word, "around", side), (turn + act) * 4),
        ]
    sentences = phrases + [
        ((*words, often), actions * times)
        for words, actions in phrases
        for often, times in (("twice", 2), ("thrice", 3))
    ]
    commands = list(sentences)
    for (words, actions), (more_words, more_actions) in itertools.product(sentences, repeat=2):
        commands.append(((*words, "and", *more_words), actions + more_actions))
        commands.append(((*words, "after", *more_words), more_actions + actions))
    return commands


def check_pairs(pairs: list[Pair], origin: str) -> None:
    """Raises ValueError for the first pair that the grammar does not generate, or if pairs are missing or repeated."""
    known = dict(grammar())
    for number, (words, actions) in enumerate(pairs, 1):
        if known.get(words) != actions:
            wanted = known.get(words)
            raise ValueError(
                f"{origin}, pair {number}: {' '.join(words)!r} gives {' '.join(actions)!r}; the grammar "
                + ("has no such command" if wanted is None else f"gives {' '.join(wanted)!r}")
            )
    if len(pairs) != len(known) or len(dict(pairs)) != len(known):
        raise ValueError(
            f"{origin} has {len(pairs)} pairs, {len(dict(pairs))} of them different; SCAN has {len(known)}"
        )


@dataclasses.dataclass(frozen=True, eq=False)
class Scan(FileTask):
    """Commands of up to 9 words -> up to 48 actions and the end symbol. Length: actions."""

    unit: ClassVar[str] = "actions"
    sampled_with_training: ClassVar[bool] = True
    max_actions: Annotated[int, between(1, MOST_ACTIONS - 1)] = 22
    """Most actions of a training answer. 22 is the published split."""
    validation_share: UnitInterval = 0.1
    """Fraction of the pairs up to the cut-off that is held out. 0: none, and the split `validation` is empty."""
    validation_seed: SplitSeed = 1234
    """Seed of the choice of held-out pairs."""
    length_given: bool = False
    """The model knows the length of the answer. False: it has slots for the longest answer and must end its answer."""
    whole_line: bool = False
    """The form of Neural Attention Memory: aligned, with every position scored."""
    origin: str = "grammar"
    """`grammar`, the path of the official tasks.txt, or `tfds`. Their pairs are the same, which is checked, but in a
    different order, so the held-out pairs differ."""

    def files(self) -> Sequence[Path]:
        """The official tasks.txt, if it is the origin."""
        return () if self.origin in ("grammar", "tfds") else (Path(self.origin),)

    @property
    def train_lengths(self) -> tuple[int, int]:
        """1 .. `max_actions`."""
        return 1, self.max_actions

    @property
    def test_lengths(self) -> tuple[int, int]:
        """`max_actions` + 1 .. 48."""
        return self.max_actions + 1, MOST_ACTIONS

    @property
    def curve_lengths(self) -> tuple[int, ...]:
        """The lengths that occur."""
        return _lengths()

    @property
    def spec(self) -> Spec:
        """13 words in, 6 actions and the end symbol out; in the whole-line form 23 tokens in and out."""
        if self.whole_line:
            size = LINE_END + 1
            return Spec(size, size, shared_ids=True, alignment="aligned", chance=self.chance, shapes=self.shapes)
        return Spec(
            vocabulary=len(WORDS),
            output_size=END + 1,
            length_rule="given" if self.length_given else "end",
            end_id=END,
            chance=self.chance,
            shapes=self.shapes,
        )

    @property
    def input_names(self) -> tuple[str, ...]:
        """The words; in the whole-line form also the actions and special symbols."""
        return (*WORDS, *ACTIONS, "IN:", "OUT:", "_", "<eos>") if self.whole_line else WORDS

    @property
    def answer_names(self) -> tuple[str, ...]:
        """The actions and the end symbol; in the whole-line form the input names."""
        return super().answer_names if self.whole_line else (*ACTIONS, "<eos>")

    @property
    def chance(self) -> float:
        """Token accuracy of the best constant answer on the pairs up to the cut-off."""
        return _chance(self.max_actions, self.whole_line)

    def shapes(self, capacity: int) -> tuple[int, int]:
        """(N, M): the longest command, and the longest answer with its end; in the whole-line form a line for both."""
        if self.whole_line:
            return self._line(capacity), self._line(capacity)
        return MOST_WORDS, (min(capacity, MOST_ACTIONS) if self.length_given else MOST_ACTIONS) + 1

    def _line(self, length: int) -> int:
        """Number of positions of the longest line of the split: IN:, words, OUT:, actions, end."""
        return MOST_WORDS + 3 + (self.max_actions if length <= self.max_actions else MOST_ACTIONS)

    def tables(self) -> dict[Split, Rows]:
        """Training (up to `max_actions`), validation (held out from these) and test (longer answers)."""
        rows = _all_rows(self.origin, self.version)
        pool, test = (
            rows[mask] for mask in (rows.answer_lengths <= self.max_actions, rows.answer_lengths > self.max_actions)
        )
        # as published: 1 - 0.9 is slightly below 0.1, which matters if a tenth of the pairs is an integer
        held = int(len(pool) * (1 - (1 - self.validation_share)))
        train, validation = split_off(pool, held, self.validation_seed)
        test = test[np.random.default_rng(self.validation_seed).permutation(len(test))]
        return {"train": train, "validation": validation, "test": test}

    def row_lengths(self, rows: Rows) -> np.ndarray:
        """Number of actions."""
        return rows.answer_lengths

    def example(self, row: tuple[jax.Array, ...], capacity: int) -> Example:
        """One pair; padding is 0."""
        words, word_count, actions, action_count = (array.astype(jnp.int32) for array in row)
        if self.whole_line:
            return self._whole(words, word_count, actions, action_count, capacity)
        slot = jnp.arange(self.shapes(capacity)[1])
        score_mask = slot <= action_count
        targets = jnp.append(actions, 0)[: slot.shape[0]]
        targets = jnp.where(slot < action_count, targets, jnp.where(score_mask, END, 0))
        target_mask = score_mask if self.length_given else jnp.ones_like(score_mask)
        return Example(words, jnp.arange(MOST_WORDS) < word_count, targets, target_mask, score_mask)

    def _whole(
        self, words: jax.Array, word_count: jax.Array, actions: jax.Array, action_count: jax.Array, capacity: int
    ) -> Example:
        column = jnp.arange(self.shapes(capacity)[0])
        line = jnp.where(action_count <= self.max_actions, self._line(1), self._line(MOST_ACTIONS))
        mask = column < line
        word, action = column - 1, column - word_count - 2
        inputs = jnp.where(word < word_count, words[jnp.clip(word, 0, MOST_WORDS - 1)], LINE_BLANK)
        inputs = jnp.where(column == 0, LINE_IN, inputs)
        targets = len(WORDS) + actions[jnp.clip(action, 0, MOST_ACTIONS - 1)]
        targets = jnp.select(
            [action < -1, action == -1, action < action_count, action == action_count],
            [LINE_BLANK, LINE_OUT, targets, LINE_END],
            LINE_BLANK,
        )
        return Example(jnp.where(mask, inputs, 0), mask, jnp.where(mask, targets, 0), mask, mask)

    def metrics(self, outputs: jax.Array, batch: Batch) -> dict[str, jax.Array]:
        """Token and sequence accuracy; in the whole-line form also those of actions and end only, `answer_*`."""
        values = super().metrics(outputs, batch)
        if self.whole_line:
            asked = batch.score_mask & (batch.targets != LINE_BLANK) & (batch.targets != LINE_OUT)
            answer = batch._replace(score_mask=asked)
            values["answer_token_accuracy"] = token_accuracy(outputs, answer)
            values["answer_exact_match"] = exact_match(outputs, answer)
        return values


@functools.lru_cache(maxsize=4)
def _all_rows(origin: str, version: str) -> Rows:
    if origin == "grammar":
        pairs = grammar()
    else:
        pairs = read_tfds() if origin == "tfds" else read_file(origin)
        check_pairs(pairs, origin)
    word = {name: i for i, name in enumerate(WORDS)}
    action = {name: i for i, name in enumerate(ACTIONS)}
    return make_rows([[word[w] for w in words] for words, _ in pairs], [[action[a] for a in acts] for _, acts in pairs])


@functools.cache
def _lengths() -> tuple[int, ...]:
    return tuple(np.unique(_all_rows("grammar", "").answer_lengths).tolist())


@functools.cache
def _chance(max_actions: int, whole_line: bool) -> float:
    """Exact. In the whole-line form the best constant answer is the placeholder."""
    rows = _all_rows("grammar", "")
    rows = rows[rows.answer_lengths <= max_actions]
    if whole_line:
        return float(np.mean(1 - (rows.answer_lengths + 2) / (MOST_WORDS + 3 + max_actions)))
    real = np.arange(rows.answers.shape[1]) < rows.answer_lengths[:, None]
    slots = rows.answer_lengths + 1
    shares = [np.mean(((rows.answers == action) & real).sum(1) / slots) for action in range(END)]
    return float(max(*shares, np.mean(1 / slots)))
