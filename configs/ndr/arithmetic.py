"""Simple arithmetic of Csordás et al. (2022), Table 2, at the published sizes.

lenmem train ndr/arithmetic
lenmem reproduce ndr/arithmetic --rows arithmetic-ndr arithmetic-ndr-50k

Rows: `arithmetic-<model>`, 100,000 steps with a gate and 200,000 without; `arithmetic-<model>-50k`.
"""

from lenmem.tasks.ndr import Arithmetic

from ._recipe import NDR, STEMS, arithmetic, rows_of

MODELS = [model for model in STEMS if model not in ("Transformer + rel + gate", "Transformer + geom. att.")]

experiment = arithmetic(Arithmetic(), NDR, 100_000)
rows = {}
for budget in ("200k", "50k"):
    cells = {}
    for model in MODELS:
        longest = 100_000 if "gate" in model else 200_000
        cell = arithmetic(Arithmetic(), model, 50_000 if budget == "50k" else longest)
        cells[f"arithmetic-{STEMS[model]}" + ("-50k" if budget == "50k" else "")] = {"model": model}, cell
    rows |= rows_of("table_2", "arithmetic", cells, f"test_{budget}")
