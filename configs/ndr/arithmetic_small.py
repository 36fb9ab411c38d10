"""Simple arithmetic of Csordás et al. (2022) for a CPU.

lenmem train ndr/arithmetic_small
lenmem reproduce ndr/arithmetic_small --rows arithmetic-ndr-small

Rows: `arithmetic-<model>-small`; with a gate, at half the width.

Differences from `_recipe.small`: batches of 32, and with a gate 10 steps, the published number of heads and no dropout.
Rows have 15 tokens on average and at most 49, so 8 batches are drawn together and sorted by length, and each is padded
only to one of several widths.

Record: `results/ndr/arithmetic-ndr-small.json`. The network learns one depth after another; the paper trains on 67
times as many rows.
"""

import dataclasses

from lenmem.experiment import Experiment
from lenmem.tasks.ndr import Arithmetic

from ._recipe import MODELS, NDR, rows_of, small

SHOWN = (NDR, "Transformer + rel", "Transformer + abs/rel + gate")


def cell(model: str) -> Experiment:
    """One model of Table 2."""
    base = small(model, Arithmetic(pool=8), steps=24_000)
    training = dataclasses.replace(base.training, batch_size=32, widths=12, validate_every=2000, validation_batches=32)
    network = base.model
    if MODELS[model].gate:
        network = network.clone(heads=4, steps=10, dropout=0.0, key_dropout=0.0, gate_drop=0.0)
    return dataclasses.replace(base, model=network, training=training)


experiment = cell(NDR)
cells = {f"arithmetic-{MODELS[model].stem}-small": ({"model": model}, cell(model)) for model in SHOWN}
rows = rows_of("table_2", "arithmetic", cells, "test_50k")
