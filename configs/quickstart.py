"""Copy, learnt on sequences of 2 to 16 tokens and asked for up to 32."""

from lenmem.experiment import Evaluation, Experiment
from lenmem.models.lantm import LANTM
from lenmem.tasks.lantm import Copy
from lenmem.training import Cosine, Optimizer, Training

experiment = Experiment(
    task=Copy(vocabulary=128, train_lengths=(2, 16)),
    model=LANTM(read_gate_bias=0.0),
    training=Training(
        steps=1000, seeds=3, optimizer=Optimizer("adam", learning_rate=3e-2, schedule=Cosine(), clip_norm=1.0)
    ),
    evaluation=Evaluation(samples=64),
)
