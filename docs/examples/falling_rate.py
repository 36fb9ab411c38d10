"""A training whose learning rate rises for a tenth of its steps and then falls to zero along a cosine."""

import lenmem
from lenmem.training import Cosine

optimizer = lenmem.Optimizer("adam", learning_rate=3e-3, schedule=Cosine(warmup=0.1), clip_norm=1.0)
experiment = lenmem.Experiment(
    lenmem.tasks.make("copy", vocabulary=8, train_lengths=(1, 10)),
    lenmem.models.make("lstm", hidden_size=64),
    lenmem.Training(steps=2000, batch_size=32, seeds=3, optimizer=optimizer),
)
