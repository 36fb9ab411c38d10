"""Compositional table lookup of Csordás et al. (2022) for a CPU, in backward order.

lenmem train ndr/ctl_small
lenmem reproduce ndr/ctl_small --rows ctl_backward-ndr-small

Rows: `ctl_<order>-<model>-small`; with a gate, and the DNC, at half the width.

Records: `results/ndr/ctl_backward-<model>-small.json`, with the parameters of the best validation on 7 and 8 functions
for networks with a gate and the DNC, and the last parameters for the others. Without a gate, the networks with relative
positions and with geometric attention reach a lower `iid` accuracy than in the paper, where they saw ten times as many
examples. The DNC does not learn its training lengths: from 4 functions on it is near chance, and on 7 and 8, too, so
its validation selects at random.
"""

from lenmem.tasks.ndr import TableLookup

from ._recipe import MODELS, NDR, ORDERS, rows_of, small

SHOWN = (NDR, "DNC", "Transformer + rel", "Transformer + rel + gate", "Transformer + geom. att.")

experiment = small(NDR, TableLookup())
cells = {
    f"ctl_{order}-{MODELS[model].stem}-small": (
        {"variant": order, "model": model},
        small(model, TableLookup(order=order)),
    )
    for order in ORDERS
    for model in SHOWN
}
rows = rows_of("table_1", "ctl", cells, "longer")
