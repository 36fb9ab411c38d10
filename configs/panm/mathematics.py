"""Mathematics by character, as in Table 2 (right) of Le et al. (2024), at the published size.

lenmem train panm/mathematics
lenmem reproduce panm/mathematics --rows place_value-panm place_value-transformer

Rows: `<add_or_sub or place_value>-<model>`. PANM is on top of an encoder with relative positions. Not measured: 7
to 48 million parameters need a GPU.
"""

from typing import Any

from lenmem.tasks.mathematics import AddOrSub, PlaceValue
from lenmem.training import Optimizer

from ._seq2seq import MODELS, OVER_RELATIVE, paper, rows_of

ADAM = Optimizer("adam", learning_rate=1e-4, clip_norm=0.1)
SIZE: dict[str, Any] = {"hidden_size": 512, "feedforward_size": 2048, "encoder_layers": 6, "decoder_layers": 6}

experiment = paper(PlaceValue(), OVER_RELATIVE, ADAM, **SIZE)
rows = {
    row: cell
    for name, task in (("add_or_sub", AddOrSub()), ("place_value", PlaceValue()))
    for row, cell in rows_of(
        "table_2_math",
        name,
        {"task": name},
        {"exact_match": "mean"},
        {model: paper(task, fields, ADAM, **SIZE) for model, fields in (MODELS | {"panm": OVER_RELATIVE}).items()},
    ).items()
}
