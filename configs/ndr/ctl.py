"""Compositional table lookup of Csordás et al. (2022), Tables 1, 4, 5 and 6, at the published sizes.

lenmem train ndr/ctl
lenmem reproduce ndr/ctl --rows ctl_backward-ndr ctl_forward-ndr ctl_backward-bilstm

Rows: `ctl_<order>-<model>`; of Table 4 `ctl_<order>-ndr-<steps>`, of Table 5 `ctl_<order>-<model>-<column>`, of Table 6
`ctl_<order>-<model>-act_<A or U>-<30k or 60k>`.

Records: `results/ndr/ctl_backward-bilstm.json`; and `ctl_backward-lstm.json` of an older configuration, which reads
other tokens before and after the input.
"""

from ._recipe import MODELS, NDR, ORDERS, act, ctl, last, rows_of

experiment = ctl(NDR)

plain, depth, column, adaptive = {}, {}, {}, {"30k": {}, "60k": {}}
for order in ORDERS:
    for model, made in MODELS.items():
        where = {"variant": order, "model": model}
        name = f"ctl_{order}-{made.stem}"
        plain[name] = where, ctl(model, order)
        if model in ("Transformer", "Transformer + rel", "Transformer + rel + gate"):
            column[f"{name}-first"] = where | {"readout": "first"}, ctl(model, order, column="first")
        if model in ("Transformer", "Transformer + rel", "Transformer + geom. att."):
            for variant in "AU":
                for budget, rows in adaptive.items():
                    cell = act(variant, model, order, 1000 * int(budget[:2]))
                    rows[f"{name}-act_{variant}-{budget}"] = where | {"act": variant}, cell
    for steps in (12, 10, 8, 6, 4):
        where = {"variant": order, "model": NDR, "n_layers": steps}
        depth[f"ctl_{order}-ndr-{steps}"] = where, last(ctl(NDR, order, steps=steps))

rows = rows_of("table_1", "ctl", plain, "longer") | rows_of("table_4", "ctl", depth, "test")
rows |= rows_of("table_5", "ctl", column, "longer")
for budget, cells in adaptive.items():
    rows |= rows_of("table_6", "ctl", cells, f"longer_{budget}")
