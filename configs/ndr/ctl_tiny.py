"""Compositional table lookup of Csordás et al. (2022) with a small network, in forward order.

lenmem train ndr/ctl_tiny
lenmem reproduce ndr/ctl_tiny --rows ctl_forward-ndr-tiny

Differences from `_recipe.small`: a quarter of the published width, 12 steps in training, batches of 64, a sixth of the
examples, and dropout only of gates, since random bits for all other dropout would take a third of the time.

Record and parameters: `results/ndr/ctl_forward-ndr-tiny/`, a network of the zoo. It has one seed, so it is not among
the rows of the results.
"""

from lenmem.experiment import Experiment
from lenmem.models import make
from lenmem.tasks.ndr import TableLookup
from lenmem.training import Cosine, Optimizer, Training

from ._recipe import NDR, rows_of

experiment = Experiment(
    TableLookup(order="forward", batches="balanced"),
    make("ndr", steps=12, test_steps=16, hidden_size=64, feedforward_size=128, dropout=0.0, key_dropout=0.0),
    Training(
        steps=4000,
        batch_size=64,
        optimizer=Optimizer("adamw", 2e-3, schedule=Cosine(warmup=0.05), clip_norm=1.0, weight_decay=0.01),
        log_every=500,
        checkpoint_every=0,
    ),
)
cells = {"ctl_forward-ndr-tiny": ({"variant": "forward", "model": NDR}, experiment)}
rows = rows_of("table_1", "ctl", cells, "longer")
