"""Place values by character, as in Table 2 (right) of Le et al. (2024), at width 64 for a CPU.

lenmem train panm/mathematics_small
lenmem reproduce panm/mathematics_small --rows place_value-panm-small place_value-transformer_rpe-small

Rows: `place_value-<model>-small`, on 200,000 questions; `panm_without_pointers` is the Transformer of `panm`, with
relative positions in the encoder and absolute positions in the decoder, and an ordinary last layer instead of PANM.

Records: `results/panm/place_value-<model>-small.json`.
"""

from lenmem.reproduce import Row
from lenmem.tasks.mathematics import PlaceValue

from ._seq2seq import MODELS, OVER_RELATIVE, rows_of, small

task = PlaceValue(examples=200_000, held_out_examples=2000)
experiment = small(task, OVER_RELATIVE)
cells = {name: small(task, model) for name, model in (MODELS | {"panm": OVER_RELATIVE}).items()}
rows = rows_of("table_2_math", "place_value", {"task": "place_value"}, {"exact_match": "mean"}, cells, "-small")
without_pointers = small(task, OVER_RELATIVE | {"pointers": False})
where = {"task": "place_value", "model": "panm"}
rows["place_value-panm_without_pointers-small"] = Row(without_pointers, "table_2_math", where, {})
