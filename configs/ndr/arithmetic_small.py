"""Simple arithmetic of Csordás et al. (2022) for a CPU.

lenmem train ndr/arithmetic_small
lenmem reproduce ndr/arithmetic_small --rows arithmetic-ndr-small

Rows: `arithmetic-<model>-small`; with a gate, at half the width.
"""

from lenmem.tasks.ndr import Arithmetic

from ._recipe import NDR, STEMS, rows_of, small

MODELS = (NDR, "Transformer + rel", "Transformer + abs/rel + gate")

experiment = small(NDR, Arithmetic())
cells = {f"arithmetic-{STEMS[model]}-small": ({"model": model}, small(model, Arithmetic())) for model in MODELS}
rows = rows_of("table_2", "arithmetic", cells, "test_50k")
