"""Subwords by byte-pair encoding (Sennrich et al. 2016, https://arxiv.org/abs/1508.07909), with `tokenizers`.

Texts are first converted to bytes, so there are no unknown tokens, and decoding restores the text.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

BYTES = 256
"""Size of the smallest vocabulary."""


def library() -> Any:
    """`tokenizers`. Raises ValueError if it is not installed."""
    try:
        import tokenizers
    except ImportError:
        raise ValueError("subwords need: pip install 'lenmem[text]'") from None
    return tokenizers


def learned(texts: Iterable[str], size: int) -> str:
    """The encoding learned from texts, with all bytes and at most `size` tokens in total, as JSON of `tokenizers`."""
    tokenizers = library()
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    options = {"vocab_size": max(size, BYTES), "initial_alphabet": alphabet, "show_progress": False}
    tokenizer.train_from_iterator(texts, tokenizers.trainers.BpeTrainer(**options))
    return tokenizer.to_str()


def encoded(encoding: str, texts: Sequence[str]) -> list[list[int]]:
    """The ids of the tokens of each text."""
    tokenizer = library().Tokenizer.from_str(encoding)
    return [found.ids for found in tokenizer.encode_batch(list(texts))]


def decoded(encoding: str, rows: Iterable[Sequence[int]]) -> list[str]:
    """The texts of rows of ids. Bytes that are not UTF-8 become a replacement character."""
    return library().Tokenizer.from_str(encoding).decode_batch([list(row) for row in rows])


def names(encoding: str) -> tuple[str, ...]:
    """The tokens by id, as `tokenizers` writes them: a blank is written as \u0120."""
    ids: dict[str, int] = json.loads(encoding)["model"]["vocab"]
    return tuple(sorted(ids, key=ids.__getitem__))
