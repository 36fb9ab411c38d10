"""Handwritten digits read pixel by pixel, with the three attentions of Nam & Seo (2023): not a task of the paper.

lenmem train nam/lra_digits
lenmem reproduce nam/lra_digits --rows lra_digits-outer_product lra_digits-linear lra_digits-softmax

Trained on pictures of 8 x 8 pixels, tested on held-out pictures of this size and enlarged to up to 32 x 32. The
pictures are part of scikit-learn (`pip install 'lenmem[plot]'`).
"""

import dataclasses
from typing import get_args

from lenmem.experiment import Evaluation, Experiment
from lenmem.models.nam import NAMTransformer
from lenmem.nn.attention import Mixing
from lenmem.reproduce import Row
from lenmem.tasks.lra import Digits
from lenmem.training import Cosine, Optimizer, Training

SCORES = {"same_size/exact_match": "8 x 8", "exact_match": "enlarged"}
network = NAMTransformer(hidden_size=64, layers=1, heads=4, feedforward_size=128, column="first")
experiment = Experiment(
    Digits(),
    network,
    Training(steps=1000, batch_size=32, seeds=3, optimizer=Optimizer("adamw", learning_rate=2e-3, schedule=Cosine())),
    Evaluation(test_examples=1440, samples=360, batch_size=48),
)


def row(attention: Mixing) -> Row:
    """The same network with another attention."""
    own = dataclasses.replace(experiment, model=network.clone(attention=attention))
    return Row(own, "lra_digits", {"attention": attention}, SCORES, experiment.task.curve_lengths)


rows = {f"lra_digits-{attention}": row(attention) for attention in get_args(Mixing)}
