"""ListOps of Csordás et al. (2022), Table 3, at the published sizes.

lenmem train ndr/listops
lenmem reproduce ndr/listops --rows listops-ndr

Rows: `listops-<model>`, 100,000 steps with a gate and 200,000 without.
"""

from lenmem.tasks.ndr import DependencyListOps

from ._recipe import MODELS, NDR, TREE_MODELS, listops, rows_of, tree_steps

experiment = listops(DependencyListOps(), NDR, tree_steps(NDR))
cells = {
    f"listops-{MODELS[model].stem}": ({"model": model}, listops(DependencyListOps(), model, tree_steps(model)))
    for model in TREE_MODELS
}
rows = rows_of("table_3", "listops", cells, "test")
