"""bAbI with the longer stories of each task as the test, as in Table 3 of Le et al. (2024), at the published size.

lenmem data babi --directory data/tasks_1-20_v1-2/en-valid-10k
lenmem train panm/babi
lenmem reproduce panm/babi --rows babi_80-panm babi_80-transformer

Rows: `babi_<80 or 50>-<model>`, with the published files in `data/tasks_1-20_v1-2/en-valid-10k`. Batches and optimiser
are those of Le et al. (2020), whose protocol the paper follows. `metrics.jsonl` has accuracy and loss on the test after
each of the 100 epochs, as in the paper's Figure 5; the last parameters are scored. Not measured: 8 to 24 million
parameters need a GPU.
"""

from typing import Any

from lenmem.experiment import Evaluation, Experiment
from lenmem.models import make
from lenmem.reproduce import Row
from lenmem.tasks.questions import Babi
from lenmem.training import Optimizer, Training

from ._seq2seq import MODELS

DIRECTORY = "data/tasks_1-20_v1-2/en-valid-10k"
QUESTIONS = 20 * 11_000
EPOCHS, BATCH = 100, 128
SIZE: dict[str, Any] = {"hidden_size": 512, "heads": 8, "feedforward_size": 2048}
"""The text states width, heads and layers: 3 and 3, of which the last of PANM is the pointers."""
NAMES = ("transformer", "universal_transformer_rpe", "panm")


def of_share(share: float, model: str) -> Experiment:
    """One cell of the table."""
    task = Babi(directory=DIRECTORY, train_share=share, validation_share=0.0)
    questions = round(QUESTIONS * share)
    epoch, tests = questions // BATCH, -(-(QUESTIONS - questions) // BATCH)
    training = Training(
        steps=EPOCHS * epoch,
        batch_size=BATCH,
        seeds=5,
        seeds_at_once=1,
        optimizer=Optimizer("adam", learning_rate=6e-4, b1=0.9, b2=0.99, clip_norm=5.0),
        selection_metric="loss",
        validation_split="test",
        validate_every=epoch,
        validation_batches=tests,
        log_every=epoch,
        checkpoint_every=epoch,
        widths=8,
    )
    evaluation = Evaluation(test_examples=QUESTIONS - questions, batch_size=BATCH)
    return Experiment(task, make("transformer_seq2seq", **SIZE, **MODELS[model]), training, evaluation)


experiment = of_share(0.8, "panm")
rows = {
    f"babi_{round(100 * share)}-{model}": Row(
        of_share(share, model), "table_3", {"task": "babi", "model": model, "split": split}, {"exact_match": "mean"}
    )
    for share, split in ((0.8, "0.8-0.2"), (0.5, "0.5-0.5"))
    for model in NAMES
}
