"""Balanced brackets, as in figure 3a of Le et al. (2024): a Stack-RNN, and PANM on top of it, on up to 8 L brackets.

lenmem train panm/dyck
lenmem reproduce panm/dyck --rows dyck_2-stack_rnn dyck_2-panm

D_2 is trained on words of up to L = 10 brackets, D_3 of up to 20: 25,000 steps of one word, as in the published code of
Suzgun et al. (2019) with 5,000 distinct words; D_2 has only 1,618 of these lengths. The parameters with the best score
on training words, out of one after every 5,000 steps, are selected. PANM has width 64 and, with a controller, a rate of
0.001; the paper states a width of 256 and the default rate of that code, 0.01. Rows: `dyck_<kinds>-<model>`;
`panm_alone` is PANM without the Stack-RNN. `panm_reads` has no controller: it is the Stack-RNN, with the values the
pointers read as additional inputs of its output layer. The figure has no numbers.

Records: `results/panm/dyck_<kinds>-<model>.json`. According to the paper's text, PANM is above the Stack-RNN at every
length. Brackets right (`token_accuracy`; the paper scores whole words), in percent, on D_2 at L + 2, 2 L, 4 L and 8 L,
in the median of five runs:

                  L + 2    2 L    4 L    8 L
    Stack-RNN      98.5   90.8   85.6   82.7
    panm           99.9   94.5   86.3   80.3
    panm_alone     99.9   94.7   87.3   81.7
    panm_reads     99.8   94.6   88.6   83.4

so by brackets pointers help up to 4 L, and at 8 L only as additional inputs; by whole words they help up to 2 L. In
the mean, as in the figure, the Stack-RNN is above `panm` from 4 L on, since two of its five runs find the stack. A
pointer's path does not depend on the data, so it cannot lead to the bracket to be closed. On D_3 the Stack-RNN finds
the stack, and the others are below it:

                  L + 2    2 L    4 L    8 L
    Stack-RNN     100.0  100.0  100.0  100.0
    panm           97.9   94.6   84.3   71.4
    panm_alone     97.6   94.5   88.4   83.3
    panm_reads    100.0   99.7   98.0   96.4
"""

from typing import NamedTuple

import flax.linen as nn

from lenmem.experiment import Evaluation, Experiment
from lenmem.models import make
from lenmem.reproduce import Row
from lenmem.tasks.dyck import Dyck
from lenmem.training import Optimizer, Training


class Network(NamedTuple):
    """A model of the figure."""

    model: nn.Module
    learning_rate: float
    printed: str = "panm"
    """Its name in the figure."""


NETWORKS = {
    "stack_rnn": Network(make("stack_rnn"), 1e-2, printed="stack_rnn"),
    "panm": Network(make("panm", hidden_size=64, decoder="stack_rnn"), 1e-3),
    "panm_alone": Network(make("panm", hidden_size=64), 1e-3),
    "panm_reads": Network(make("panm", hidden_size=64, decoder="stack_rnn", controller="none", mlp_size=None), 1e-2),
}
LONGEST = {2: 10, 3: 20}
TESTS = ("plus_2", "double", "quadruple", "octuple")


def cell(kinds: int, name: str) -> Experiment:
    """One curve of the figure."""
    training = Training(
        steps=25_000,
        batch_size=1,
        seeds=5,
        optimizer=Optimizer("adam", learning_rate=NETWORKS[name].learning_rate, clip_norm=1.0),
        selection="validation",
        validation_split="train",
        validate_every=5000,
        validation_batches=500,
        log_every=500,
        checkpoint_every=5000,
    )
    task = Dyck(kinds=kinds, longest=LONGEST[kinds], distinct=True)
    return Experiment(task, NETWORKS[name].model, training, Evaluation(test_examples=5000))


experiment = cell(2, "panm")
rows = {
    f"dyck_{kinds}-{name}": Row(
        cell(kinds, name),
        "figure_3a",
        {"task": f"dyck_{kinds}", "model": network.printed},
        {f"{test}/exact_match": test for test in TESTS},
    )
    for kinds in LONGEST
    for name, network in NETWORKS.items()
}
