"""Long Range Arena byte-level text (IMDB) as in Table 1 of Nam & Seo (2023), with the published code's settings.

lenmem train nam/lra_text --task.origin /path/to/aclImdb
lenmem reproduce nam/lra_text --rows text-nam_transformer     (reads IMDB through TensorFlow Datasets)

Not measured: needs a GPU and the reviews. The printed numbers are missing in our copies of the paper.
"""

from lenmem.tasks.lra import ByteText
from lenmem.training import Optimizer, Training, WarmupRsqrt

from ._lra import arena

training = Training(
    steps=240_000,
    batch_size=3,
    optimizer=Optimizer(
        "adamw", learning_rate=0.05 * 80_000**-0.5, weight_decay=1e-2, b2=0.98, eps=1e-9, schedule=WarmupRsqrt(80_000)
    ),
)
size = {"hidden_size": 256, "layers": 4, "heads": 4, "feedforward_size": 1024}
experiment, rows = arena(ByteText(max_length=1000), "text", training, size)
