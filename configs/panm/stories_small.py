"""Generated stories with a question, trained on up to 12 sentences and tested on up to 48, at width 64 for a CPU.

lenmem train panm/stories_small
lenmem reproduce panm/stories_small --rows stories-transformer-small stories-panm-small

Rows: `stories-<model>-small`. The stories are of nine of the kinds of bAbI, but with other words and worlds, so the
scores cannot be compared with Table 3 of Le et al. (2024), for which see `panm/babi`. The networks are those of that
table.
"""

from lenmem.data.stories import KINDS
from lenmem.tasks.stories import Stories

from ._seq2seq import MODELS, rows_of, small

NAMES = ("transformer", "transformer_rpe", "universal_transformer_rpe", "panm")
SCORES = {"validation/exact_match": "4 to 12", "exact_match": "13 to 48"}
SCORES |= {f"{kind}/exact_match": kind for kind in KINDS}

experiment = small(Stories(), MODELS["panm"])
cells = {name: small(Stories(), MODELS[name]) for name in NAMES}
rows = rows_of("stories", "stories", {}, SCORES, cells, "-small")
