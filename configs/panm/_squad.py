"""The common parts of the two splits of SQuAD."""

from lenmem.experiment import Evaluation, Experiment
from lenmem.models import make
from lenmem.reproduce import Row
from lenmem.tasks.rows import share_of
from lenmem.tasks.squad import Squad
from lenmem.training import LinearDecay, Optimizer, Training

QUESTIONS, EPOCHS, BATCH = 87_599 + 10_570, 3, 16
FILES, WEIGHTS = "data/squad", "data/bert-base-uncased"
MODELS = {"bert": "bert_span", "panm_bert": "bert_span_panm"}
"""The paper's name -> ours."""


def of_share(share: float, model: str) -> Experiment:
    """BERT, or BERT and PANM, fine-tuned on the questions about the shorter contexts.

    Epochs, rate and batches are those of the paper. For other settings it refers to Devlin et al. (2019), in whose code
    the rate rises during a tenth of the steps and then decays linearly, the gradient is clipped to a norm of 1, and all
    weights but those of norms decay. Here only those of linear maps decay, and Adam corrects its bias.
    """
    task = Squad(directory=FILES, vocabulary=WEIGHTS, train_share=share)
    training = Training(
        steps=EPOCHS * (share_of(QUESTIONS, share) // BATCH),
        batch_size=BATCH,
        optimizer=Optimizer(
            "adamw",
            learning_rate=5e-5,
            schedule=LinearDecay(warmup=0.1),
            clip_norm=1.0,
            weight_decay=0.01,
            decay_mask="kernels",
            eps=1e-6,
        ),
        log_every=100,
        checkpoint_every=1000,
        widths=3,
    )
    evaluation = Evaluation(test_examples=2 * QUESTIONS, batch_size=32)  # more than the number of windows
    return Experiment(task, make(MODELS[model], weights=WEIGHTS), training, evaluation)


def rows_of(share: float) -> dict[str, Row]:
    """The four rows of a split: two scores of each of the two networks, which are trained once."""
    name, split = f"squad_{round(100 * share)}", f"{share:g}-{1 - share:g}"
    found = {}
    for model in MODELS:
        for metric in ("f1", "em"):
            where = {"task": "squad", "model": model, "split": split, "metric": metric}
            trained_as = None if metric == "f1" else f"{name}-{model}-f1"
            experiment = of_share(share, model)
            found[f"{name}-{model}-{metric}"] = Row(
                experiment, "table_4", where, {metric: "mean"}, trained_as=trained_as
            )
    return found
