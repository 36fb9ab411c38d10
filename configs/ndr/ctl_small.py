"""Compositional table lookup of Csordás et al. (2022) at half the width, for a CPU, in backward order.

lenmem train ndr/ctl_small
lenmem reproduce ndr/ctl_small --rows ctl_backward-ndr-small

Rows: `ctl_<order>-<model>-small`.

Seen backwards, 3 seeds, parameters of the best validation on 7 and 8 functions: NDR 100% on 1 to 5 functions and 96.5%
on 9 and 10 in the median (seeds 100, 96.5, 14), one seed 100% up to 12 functions; relative positions and a gate 100%
and 17% (17, 14.5, 26): all three seeds read 6 functions without a mistake in 64, 8 in 28 to 47%, and guess from 12 on;
DNC 12% (guessing: nothing it learns of 1 to 5 functions, a loss of 0.9 nats, helps on 7 and 8, so the validation
chooses blindly). NDR: 1.4 updates of 3 seeds a second on one core of an AMD EPYC, so 2.5 hours; relative positions and
a gate 1.7, one seed after another; DNC: 4.5, with other work on the core.
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
