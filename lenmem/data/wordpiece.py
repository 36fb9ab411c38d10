"""Word pieces, with the vocabulary of a BERT (Devlin et al. 2019, https://arxiv.org/abs/1810.04805) and `tokenizers`.

A text is cleaned, optionally converted to lower case without accents, and split at blanks and punctuation marks. Each
word is then split from left to right into the longest pieces of the vocabulary; pieces inside words begin with `##`.
"""

from __future__ import annotations

import os
import string
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from lenmem.data import squad, subwords
from lenmem.data.files import text_of

FILE = "vocab.txt"
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
SEPARATOR = 102
"""The id of [SEP] in the published vocabularies."""


class Pieces(NamedTuple):
    """A text as pieces."""

    ids: list[int]
    places: list[tuple[int, int]]
    """For each piece, its characters in the text: first, last + 1."""


def files_of(path: str | os.PathLike[str]) -> list[Path]:
    """The file that `read` reads; none for `example`."""
    if os.fspath(path) == "example":
        return []
    return [Path(path) / FILE if Path(path).is_dir() else Path(path)]


def read(path: str | os.PathLike[str]) -> tuple[str, ...]:
    """The pieces by id, from a file with one on each line, or from `vocab.txt` in a directory. `example`: in memory.

    Raises:
        ValueError: if the file is missing or wrong, with its name and line.
    """
    if os.fspath(path) == "example":
        return example()
    (path,) = files_of(path)
    pieces = text_of(path, f"a {FILE} of BERT").removesuffix("\n").split("\n")
    seen: dict[str, int] = {}
    for number, piece in enumerate((piece.removesuffix("\r") for piece in pieces), 1):
        if not piece:
            raise ValueError(f"{path}, line {number}: it is empty; expected a piece on each line")
        if piece in seen:
            raise ValueError(f"{path}, line {number}: {piece!r} is also on line {seen[piece]}")
        seen[piece] = number
    missing = [piece for piece in SPECIAL if piece not in seen]
    if missing:
        raise ValueError(f"{path}: there is no {missing[0]}; a vocabulary of BERT has {', '.join(SPECIAL)}")
    return tuple(seen)


def split(vocabulary: Sequence[str], texts: Sequence[str], *, lowercase: bool) -> list[Pieces]:
    """The pieces of each text. Raises ValueError if `tokenizers` is not installed."""
    tokenizers = subwords.library()
    ids = {piece: number for number, piece in enumerate(vocabulary)}
    model = tokenizers.models.WordPiece(ids, unk_token="[UNK]", max_input_chars_per_word=100)
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    found = tokenizer.encode_batch(list(texts), add_special_tokens=False)
    return [Pieces(text.ids, text.offsets) for text in found]


def example() -> tuple[str, ...]:
    """A vocabulary with the words of `lenmem.data.squad.example` except names, and all letters. [SEP] has the id 102,
    as published."""
    words = {
        word.strip(string.punctuation).lower()
        for file in squad.example().values()
        for question in squad.parsed(file, "example")
        for word in f"{question.context} {question.question}".split()
    } - {name.lower() for name in squad.people()}
    letters = string.ascii_lowercase
    unused = [f"[unused{number}]" for number in range(99)]
    special = ["[PAD]", *unused, "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    return (*special, *".?", *letters, *(f"##{letter}" for letter in letters), *sorted(words - set(letters)))
