"""An example, the traces of a network on it, and the names of its tokens, steps and slots in pictures."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from lenmem.evaluation.traces import column_names, token_names
from lenmem.types import Batch, Spec


@dataclasses.dataclass(frozen=True)
class Scene:
    """One example and the traces of a network on it. For pictures of many examples: a batch."""

    spec: Spec
    batch: Batch
    traces: Mapping[str, np.ndarray]
    """As `traces.collect` returns them."""
    input_names: Sequence[str]
    """Names of the input's tokens."""
    answer_names: Sequence[str]
    """Names of the answer's tokens."""
    title: str = ""
    """The line above every picture."""
    everything: bool = False
    """Also draw separately what is otherwise drawn together, such as the heads of an attention."""
    tsne: bool = False
    """Draw maps of states by t-SNE, not by principal components."""

    def token_name(self, token: int) -> str:
        """Name of a token that a recurrent network reads, special ones included."""
        if 0 <= token < len(self.input_names):
            return str(self.input_names[token])
        return token_names(len(self.input_names))(token)

    def trace(self, name: str) -> np.ndarray:
        """The trace with this name on the first example: [T, ...]."""
        return self.traces[name][0]

    @property
    def recurrent(self) -> bool:
        """Whether the network read its input step by step."""
        return "valid" in self.traces

    @property
    def inputs(self) -> list[str]:
        """Names of the real inputs; numbers for inputs without tokens."""
        names = column_names(self.spec, self.batch, 0, lambda token: str(self.input_names[token]))
        real = int(self.batch.input_mask[0].sum())
        return names[1 : real + 1] if names[:1] == ["begin"] and len(names) > real + 1 else names[:real]

    @property
    def answers(self) -> list[str]:
        """Names of the answer slots: the right tokens, a question mark if they are unknown, else numbers."""
        asked, scored = (np.asarray(mask[0]) for mask in (self.batch.target_mask, self.batch.score_mask))
        slots = np.flatnonzero(asked)
        if self.spec.outputs != "tokens":
            return [str(number + 1) for number in range(len(slots))]
        targets = np.asarray(self.batch.targets[0])
        return [self.answer_name(int(targets[slot])) if scored[slot] else "?" for slot in slots]

    def answer_name(self, token: int) -> str:
        """Name of an answer token; an end symbol without a name is called `end`."""
        name = str(self.answer_names[token])
        return "end" if token == self.spec.end_id and name == str(token) else name

    @property
    def steps(self) -> list[str] | None:
        """Names of the real steps of a recurrent network: the tokens read, then the right answers."""
        if "valid" not in self.traces or "token" not in self.traces:
            return None
        tokens = self.traces["token"][0][: int(self.traces["valid"][0].sum())]
        if self.spec.takes_tokens or self.spec.vocabulary:
            read = [self.token_name(int(token)) for token in tokens]
        else:
            specials = {1: "delimiter", 2: ""}
            read = [specials.get(int(token), str(step)) for step, token in enumerate(tokens)]
        first = self.first_answer
        if first is None or self.spec.alignment == "aligned":
            return read
        return [*read[:first], *(f"→ {name}" for name in self.answers[: len(read) - first])]

    @property
    def first_answer(self) -> int | None:
        """The first step of the answer; None if every step answers, or if steps are not distinguished."""
        if "decoding" not in self.traces or self.spec.alignment == "aligned":
            return None
        decoding = self.traces["decoding"][0]
        return int(np.argmax(decoding)) if decoding.any() else None

    def naming(self, size: int) -> tuple[list[str] | None, int]:
        """Names for an axis of length `size`, and its real length; None if it is unknown what the axis counts."""
        slots, answers = self.batch.input_mask.shape[1], self.batch.target_mask.shape[1]
        inputs = self.inputs
        known: list[tuple[int, list[str]]] = [
            (slots, inputs),
            (slots + 2, ["begin", *inputs, "end"]),
            (answers, self.answers),
            (slots + answers, [*inputs, *self.answers]),
        ]
        if "valid" in self.traces:
            steps = self.steps or [str(step) for step in range(int(self.traces["valid"][0].sum()))]
            known = [(self.traces["valid"].shape[1], steps)]
        found = [names for static, names in known if static == size]
        if len(found) == 1:
            return found[0], len(found[0])
        lengths = {len(names) for names in found}
        return None, lengths.pop() if len(lengths) == 1 else size
