"""One Transformer with each position encoding: the comparison of Kazemnejad et al. (2023) and Ruoss et al. (2023)
on tasks whose answers are as long as their inputs."""

from typing import Any

from lenmem.experiment import Evaluation, Experiment
from lenmem.models.transformer import Transformer
from lenmem.tasks.lantm import LantmTask
from lenmem.training import Cosine, Optimizer, Training

ENCODINGS = {
    "sinusoidal": "sinusoidal",
    "learned": "learned",
    "none": "none",
    "xl": "relative",
    "rotary": "rotary",
    "alibi": "alibi",
    "t5": "t5",
    "fire": "fire",
}


def network(positions: str, *, random: bool = False, width: int = 64, **fields: Any) -> Transformer:
    """Two layers with mask tokens for the answer."""
    fields |= {"hidden_size": width, "layers": 2, "heads": 4, "feedforward_size": 4 * width, "dropout": 0.0}
    return Transformer(positions=positions, random_positions=random, **fields)  # pyright: ignore[reportArgumentType]


def networks(width: int = 64, **fields: Any) -> dict[str, Transformer]:
    """A network with each encoding, and with each except `none` also with random positions."""
    plain = {name: network(kind, width=width, **fields) for name, kind in ENCODINGS.items()}
    random = {
        f"{name}_randomized": network(kind, random=True, width=width, **fields)
        for name, kind in ENCODINGS.items()
        if kind != "none"
    }
    return plain | random


def experiment_of(task: LantmTask, lengths: tuple[int, ...], *, steps: int, seeds: int, width: int = 64) -> Experiment:
    """The experiment with sinusoidal positions. All encodings have its training and evaluation."""
    optimizer = Optimizer("adam", learning_rate=1e-3, schedule=Cosine(warmup=100), clip_norm=1.0)
    training = Training(steps, batch_size=32, seeds=seeds, optimizer=optimizer)
    return Experiment(task, network("sinusoidal", width=width), training, Evaluation(lengths, test_examples=640))


def small(task: LantmTask) -> Experiment:
    """For a CPU: trained on lengths up to 20, tested on up to ten times that."""
    return experiment_of(task, (5, 10, 15, 20, 22, 25, 30, 40, 60, 80, 100, 150, 200), steps=5000, seeds=1)


def large(task: LantmTask) -> Experiment:
    """For a GPU: width 256, trained on lengths up to 40, tested on up to 500."""
    lengths = (10, 20, 30, 40, 45, 50, 60, 80, 120, 160, 200, 300, 400, 500)
    return experiment_of(task, lengths, steps=20_000, seeds=3, width=256)
