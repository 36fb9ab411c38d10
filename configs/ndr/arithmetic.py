"""Simple arithmetic of Csordás et al. (2022), Table 2, at the published sizes.

lenmem train ndr/arithmetic
lenmem reproduce ndr/arithmetic --rows arithmetic-ndr arithmetic-ndr-50k

Rows: `arithmetic-<model>`, 100,000 steps with a gate and 200,000 without; `arithmetic-<model>-50k`.
"""

from lenmem.tasks.ndr import Arithmetic

from ._recipe import MODELS, NDR, TREE_MODELS, arithmetic, rows_of, tree_steps

experiment = arithmetic(Arithmetic(), NDR, tree_steps(NDR))
rows = {}
for budget in ("200k", "50k"):
    cells = {}
    for model in TREE_MODELS:
        cell = arithmetic(Arithmetic(), model, 50_000 if budget == "50k" else tree_steps(model))
        cells[f"arithmetic-{MODELS[model].stem}" + ("-50k" if budget == "50k" else "")] = {"model": model}, cell
    rows |= rows_of("table_2", "arithmetic", cells, f"test_{budget}")
