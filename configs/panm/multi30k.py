"""Multi30K with the longer sentences as the test, as in Figure 3b of Le et al. (2024).

lenmem data multi30k --directory data/multi30k
lenmem compare panm/multi30k
lenmem compare panm/multi30k --task.train-share 0.5 --directory runs/multi30k_half

Transformers of one to three layers in encoder and decoder, with and without PANM instead of the decoder's last layer,
on the published files in `data/multi30k`. `metrics.jsonl` and `training.png` of a run have the perplexity on the
6,203 longer sentences (69 of them count twice) after each epoch; the parameters with the best perplexity are selected,
as in the paper. With a share of 0.5, an epoch is 1.6 passes. `lenmem evaluate RUN` adds BLEU.

The paper does not state sizes, tokens or rates. Those here are ours, so perplexities may differ in scale. Not measured:
50 epochs of 24,811 pairs need a GPU.
"""

from lenmem.experiment import Evaluation, Experiment
from lenmem.models import make
from lenmem.tasks.translation import Translation
from lenmem.training import Optimizer, Training, WarmupRsqrt

EPOCHS, BATCH = 50, 128
EPOCH = 24_811 // BATCH
"""Number of steps of one pass over the shorter 0.8 of the pairs."""

models = {
    f"{name}_{layers}": make(
        "transformer_seq2seq",
        hidden_size=256,
        heads=8,
        feedforward_size=1024,
        encoder_layers=layers,
        decoder_layers=layers,
        pointers=name == "panm",
    )
    for layers in (1, 2, 3)
    for name in ("transformer", "panm")
}
training = Training(
    steps=EPOCHS * EPOCH,
    batch_size=BATCH,
    seeds=3,
    optimizer=Optimizer("adam", learning_rate=1e-3, b2=0.98, clip_norm=1.0, schedule=WarmupRsqrt(1000)),
    selection="running_ood",
    selection_metric="perplexity",
    validate_every=EPOCH,
    validation_batches=49,
    log_every=EPOCH,
    checkpoint_every=EPOCH,
    widths=4,
)
experiment = Experiment(
    Translation(directory="data/multi30k", validation_share=0.0),
    models["panm_2"],
    training,
    Evaluation(test_examples=6203),
)
