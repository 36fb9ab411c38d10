"""How a network is trained, as plain data."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, Protocol

import flax.linen as nn
import jax
import optax

from lenmem.fields import Count, Positive, check_fields
from lenmem.tasks.base import Split, Task
from lenmem.training.optimizer import Optimizer


@dataclasses.dataclass(frozen=True)
class Training:
    """How a network is trained."""

    steps: Count = 10_000
    """Optimiser steps."""
    batch_size: Positive = 32
    """Examples of a step."""
    seeds: Positive = 1
    """Seeds trained in one program; each has its own parameters and data."""
    seed: int = 0
    """The key everything is drawn from."""
    optimizer: Optimizer | optax.GradientTransformation = Optimizer()
    """The update rule. An Optax transformation works too, but is not saved: to resume, it has to be passed again."""
    selection: Literal["last", "validation", "running_ood"] = "last"
    """Parameters that are kept: the last; those of the best validation (ties to the latest); or those of the best score
    on the *test* range seen during training. The last rule selects on test lengths and is printed as such."""
    selection_metric: str = "exact_match"
    """Metric that selects: the largest is best; or `loss`, of which the smallest is."""
    selection_window: Positive = 1
    """The score is the mean over this many latest validations, once there are as many."""
    validation_split: str = "validation"
    """Split of the task that a validation scores; under `running_ood` it is `test`."""
    validate_every: Count = 0
    """Steps between two validations; 0: never (selection needs some)."""
    validation_batches: Positive = 10
    """Batches of a validation."""
    log_every: Positive = 100
    """Steps of one compiled call, and between two lines of metrics."""
    checkpoint_every: Count = 1000
    """Steps between two checkpoints, beside the one at the end; a multiple of log_every. 0: only at the end."""
    keep_checkpoints: Positive = 2
    """Checkpoints kept."""
    keep_steps: tuple[int, ...] = ()
    """Steps whose parameters are kept for good (under `snapshots/`), to look at a network in the middle of training."""
    devices: Positive | None = None
    """Devices that batches are spread over, and seeds where batches do not divide evenly. None: as many as can be."""
    seeds_at_once: Positive | None = None
    """Seeds whose steps are one computation, a divisor of `seeds`; the others wait. None: all. Few need less memory,
    and on a CPU less time where a network is so large that its matrix products take nearly all of it."""
    widths: Positive = 1
    """Widths a training step is compiled for, evenly spaced: a batch takes the narrowest that holds its longest input.
    For batches of inputs of about one length; each width is compiled by itself."""

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("validate_every", "checkpoint_every"):
            if getattr(self, name) % self.log_every:
                raise ValueError(
                    f"training.{name} must be a multiple of log_every={self.log_every}, got {getattr(self, name)}"
                )
        if self.seeds % self.together:
            raise ValueError(f"training.seeds_at_once={self.seeds_at_once} does not divide seeds={self.seeds}")
        if self.selection != "last" and not self.validate_every:
            raise ValueError(f"training.selection={self.selection!r} needs validate_every > 0")
        if self.selection_window > 1 and self.selection_window * self.validate_every > self.steps:
            raise ValueError(
                f"training.selection_window={self.selection_window} validations, one each {self.validate_every} steps, "
                f"are more than {self.steps} steps have"
            )

    @property
    def together(self) -> int:
        """Seeds whose steps are one computation."""
        return self.seeds_at_once or self.seeds

    @property
    def scored_split(self) -> Split:
        """The split that is scored while training."""
        return "test" if self.selection == "running_ood" else self.validation_split

    @property
    def rule(self) -> str:
        """In words, which parameters are kept."""
        if self.selection == "last":
            return "the parameters after the last step"
        score = "score" if self.selection_window == 1 else f"mean score of {self.selection_window} validations in a row"
        if self.scored_split != "validation":
            return f"the parameters with the best {score} on the split {self.scored_split} seen during training"
        return "the parameters of the best validation" if self.selection_window == 1 else f"those of the best {score}"

    @property
    def kept(self) -> dict[str, Any]:
        """What a `State` has to have room for."""
        return {"keep_best": self.selection != "last", "window": self.selection_window}

    @property
    def transformation(self) -> optax.GradientTransformation:
        """The update rule, made for this many steps."""
        rule = self.optimizer
        return rule.build(self.steps) if isinstance(rule, Optimizer) else rule

    @property
    def advanced(self) -> dict[str, Any]:
        """How `make_advance` computes a step."""
        return {"batch_size": self.batch_size, "at_once": self.seeds_at_once, "widths": self.widths}

    def device_count(self) -> int:
        """Devices that batches and seeds are spread over, equally many of each process."""
        available, shared_by = jax.device_count(), jax.process_count()
        work = self.batch_size * self.together
        shared = f"batch_size={self.batch_size} times seeds={self.together}"
        if self.devices is None:
            usable = [n for n in range(shared_by, available + 1, shared_by) if work % n == 0]
            if not usable:
                raise ValueError(f"{shared_by} processes do not divide {shared}")
            return usable[-1]
        if self.devices > available:
            raise ValueError(f"training.devices is {self.devices}, but there are {available}")
        if self.devices % shared_by:
            raise ValueError(f"training.devices={self.devices} is not a multiple of the {shared_by} processes")
        if work % self.devices:
            raise ValueError(f"training.devices={self.devices} does not divide {shared}")
        return self.devices


class TrainableExperiment(Protocol):
    """What `train` needs of an experiment."""

    @property
    def task(self) -> Task: ...
    @property
    def training(self) -> Training: ...
    @property
    def bound_model(self) -> nn.Module: ...
