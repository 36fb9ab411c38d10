"""Long Range Arena ListOps as in Table 1 of Nam & Seo (2023), with the published code's settings.

lenmem train nam/lra_listops
lenmem train nam/lra_listops --task.origin /path/to/lra_release/listops-1000
lenmem reproduce nam/lra_listops --rows listops-nam_transformer

Not measured: needs a GPU. The printed numbers are missing in our copies of the paper.
"""

from lenmem.tasks.lra import ListOps
from lenmem.training import Optimizer, Training, WarmupRsqrt

from ._lra import arena

# 0.05 / sqrt(step) after the warm-up, written as a peak rate.
training = Training(
    steps=80_000,
    batch_size=2,
    optimizer=Optimizer(
        "adamw", learning_rate=0.05 * 16_000**-0.5, weight_decay=1e-2, b2=0.98, eps=1e-9, schedule=WarmupRsqrt(16_000)
    ),
)
size = {"hidden_size": 256, "layers": 4, "heads": 4, "feedforward_size": 1024}
experiment, rows = arena(ListOps(cut_at=1000), "listops", training, size)
