"""Training: configuration, optimisers, the compiled step, the loop, and the directory of a run."""

from lenmem.training.checkpoint import CheckpointError
from lenmem.training.configuration import Training
from lenmem.training.loop import DivergedError, Result, train
from lenmem.training.optimizer import Constant, Cosine, LinearDecay, Optimizer, StepDecay, WarmupRsqrt

__all__ = [
    "CheckpointError",
    "Constant",
    "Cosine",
    "DivergedError",
    "LinearDecay",
    "Optimizer",
    "Result",
    "StepDecay",
    "Training",
    "WarmupRsqrt",
    "train",
]
