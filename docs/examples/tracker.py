"""What a training reports, sent to a tracker of experiments."""

import lenmem

logged = []


def log(values, step):
    """Stands for the tracker's own function."""
    logged.append((step, values))


def report(entry):
    """One line of metrics: numbers of all seeds, under a name for each. JSON has no NaN; here it is the text `nan`."""
    step = entry["step"]
    log({f"loss/seed {seed}": float(loss) for seed, loss in enumerate(entry["loss"])}, step)


experiment = lenmem.Experiment(
    lenmem.tasks.make("copy", vocabulary=8, train_lengths=(2, 4)),
    lenmem.models.make("gru", hidden_size=16),
    lenmem.Training(steps=20, batch_size=8, seeds=2, log_every=10),
)
result = lenmem.train(experiment, report=report)
