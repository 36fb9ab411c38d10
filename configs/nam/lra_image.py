"""Long Range Arena pixel-level image (CIFAR-10) as in Table 1 of Nam & Seo (2023), with the published code's settings.

lenmem train nam/lra_image --task.origin /path/to/cifar-10-batches-bin
lenmem reproduce nam/lra_image --rows image-nam_transformer     (reads CIFAR-10 through TensorFlow Datasets)

Not measured: needs a GPU and the pictures. The printed numbers are missing in our copies of the paper.
"""

from lenmem.tasks.lra import PixelImage
from lenmem.training import Cosine, Optimizer, Training

from ._lra import arena

# 100 passes over 45,000 pictures in batches of 4, one of them with warm-up.
training = Training(
    steps=1_125_000,
    batch_size=4,
    optimizer=Optimizer("adam", learning_rate=5e-4, b2=0.98, eps=1e-9, schedule=Cosine(warmup=0.01)),
)
size = {
    "hidden_size": 128,
    "attention_size": 64,
    "layers": 1,
    "heads": 8,
    "feedforward_size": 128,
    "dropout": 0.3,
    "positions": "learned",
}
experiment, rows = arena(PixelImage(), "image", training, size)
