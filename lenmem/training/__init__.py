"""Training: optimisers, the compiled step, the loop and checkpoints."""

from lenmem.training.checkpoint import CheckpointError
from lenmem.training.loop import DivergedError, Result, Training, train
from lenmem.training.optimizer import Constant, Cosine, Linear, Optimizer, StepDecay, WarmupRsqrt

__all__ = [
    "CheckpointError",
    "Constant",
    "Cosine",
    "DivergedError",
    "Linear",
    "Optimizer",
    "Result",
    "StepDecay",
    "Training",
    "WarmupRsqrt",
    "train",
]
