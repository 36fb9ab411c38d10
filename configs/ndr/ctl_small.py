"""Compositional table lookup of Csordás et al. (2022) at half the width, for a CPU, in backward order.

lenmem train ndr/ctl_small
lenmem reproduce ndr/ctl_small --rows ctl_backward-ndr-small

Rows: `ctl_<order>-<model>-small`.
"""

from lenmem.tasks.ndr import TableLookup

from ._recipe import NDR, ORDERS, STEMS, rows_of, small

MODELS = (NDR, "DNC", "Transformer + rel", "Transformer + rel + gate", "Transformer + geom. att.")

experiment = small(NDR, TableLookup())
cells = {
    f"ctl_{order}-{STEMS[model]}-small": ({"variant": order, "model": model}, small(model, TableLookup(order=order)))
    for order in ORDERS
    for model in MODELS
}
rows = rows_of("table_1", "ctl", cells, "longer")
