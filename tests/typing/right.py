"""Correct use: pyright reports nothing."""

import lenmem
from lenmem.models.lantm import LANTM
from lenmem.models.lstm import LSTM
from lenmem.tasks.lantm import Copy

experiment = lenmem.Experiment(
    task=Copy(vocabulary=128, train_lengths=(2, 16)),
    model=LANTM(hidden_size=50, weighting="softmax"),
    training=lenmem.Training(steps=600, seeds=3, optimizer=lenmem.Optimizer("adam", learning_rate=3e-3)),
)
result = lenmem.train(experiment)
steps: int = result.step
other = LSTM(hidden_size=256, layers=2).clone(spec=experiment.task.spec)
make_mesh = lenmem.parallel.make_mesh
plot = lenmem.evaluation.plots.plot_curves
