"""Drawn stories with a question, trained on up to 12 sentences and tested on up to 48, at width 64 for a CPU.

lenmem compare panm/stories_small
lenmem compare panm/stories_small --models transformer panm

The stories are of nine of the kinds of bAbI, but have their own words and worlds, so the numbers say nothing about
Table 3 of Le et al. (2024), which `panm/babi` measures. The networks are those of that table.
"""

from lenmem.models import make
from lenmem.tasks.stories import Stories

from ._seq2seq import MODELS, small

SIZE = {"hidden_size": 64, "heads": 4, "feedforward_size": 128}

task = Stories()
experiment = small(task, MODELS["panm"])
models = {
    name: make("transformer_seq2seq", **SIZE, **MODELS[name])
    for name in ("transformer", "transformer_rpe", "universal_transformer_rpe", "panm")
}
