"""Compositional table lookup of Csordás et al. (2022) for a CPU, in backward order.

lenmem train ndr/ctl_small
lenmem reproduce ndr/ctl_small --rows ctl_backward-ndr-small

Rows: `ctl_<order>-<model>-small`; with a gate, and the DNC, at half the width.

Seen backwards, 3 seeds, parameters of the best validation on 7 and 8 functions: NDR 100% on 1 to 5 functions and 96.5%
on 9 and 10 in the median (seeds 100, 96.5, 14), one seed 100% up to 12 functions; relative positions and a gate 100%
and 17% (17, 14.5, 26): all three seeds read 6 functions without a mistake in 64, 8 in 28 to 47%, and guess from 12 on;
DNC 12% (guessing: nothing it learns of 1 to 5 functions, a loss of 0.9 nats, helps on 7 and 8, so the validation
chooses blindly).

Without a gate, last parameters: relative positions 74% (66, 74, 87) and 14%, geometric attention 38% (27, 42, 38) and
12%. Both guess on 9 and 10 functions, as the paper's do (13 and 15%), but the paper's know 1 to 5 (100 and 93%): they
saw ten times as many examples. Here relative positions have learned 3 functions (97 to 100%), geometric attention 1 (of
2 it knows 78 to 97%), and the losses, 0.3 to 0.5 and 0.8 to 1.0 nats, stopped falling with the rate.

Updates of 3 seeds a second on one core of an AMD EPYC: NDR 1.4, so 2.5 hours; one seed after another, relative
positions and a gate 1.7, relative positions 1.7, geometric attention 1.6; DNC 4.5, with other work on the core.
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
