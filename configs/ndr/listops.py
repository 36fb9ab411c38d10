"""ListOps of Csordás et al. (2022), Table 3, at the published sizes.

lenmem train ndr/listops
lenmem reproduce ndr/listops --rows listops-ndr

Rows: `listops-<model>`, 100,000 steps with a gate and 200,000 without.
"""

from lenmem.tasks.ndr import DependencyListOps

from ._recipe import NDR, STEMS, listops, rows_of

MODELS = [model for model in STEMS if model not in ("Transformer + rel + gate", "Transformer + geom. att.")]

experiment = listops(DependencyListOps(), NDR, 100_000)
cells = {
    f"listops-{STEMS[model]}": (
        {"model": model},
        listops(DependencyListOps(), model, 100_000 if "gate" in model else 200_000),
    )
    for model in MODELS
}
rows = rows_of("table_3", "listops", cells, "test")
