"""The settings of a training, as plain data."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, Protocol

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from lenmem.fields import NonNegativeInt, PositiveInt, check_fields
from lenmem.tasks.base import Split, Task
from lenmem.training.optimizer import Optimizer, built


@dataclasses.dataclass(frozen=True)
class Training:
    """The settings of a training."""

    steps: NonNegativeInt = 10_000
    """Optimiser steps."""
    batch_size: PositiveInt = 32
    """Number of examples per step."""
    seeds: PositiveInt = 1
    """Number of seeds trained in one program; each has its own parameters and data."""
    seed: int = 0
    """The random key of everything that is drawn."""
    precision: Literal["f32", "bf16"] = "f32"
    """The numbers that networks compute with, here and in evaluation. `f32`: those of the model, float32 unless it has
    a dtype. `bf16`: bfloat16; parameters, sums, gates, softmaxes and the loss stay float32."""
    optimizer: Optimizer | optax.GradientTransformation = Optimizer()
    """The update rule. An Optax transformation works too, but is not saved: it must be passed again to resume."""
    selection: Literal["last", "validation", "running_ood"] = "last"
    """Parameters to keep: the last; those of the best validation (ties to the latest); or those of the best score on
    the *test* range seen during training. The last rule selects on test lengths, and results are marked with it."""
    selection_metric: str = "exact_match"
    """Metric for the selection, of which the largest is best; or `loss` or `perplexity`, of which the smallest is."""
    selection_window: PositiveInt = 1
    """The score is the mean over this many latest validations, once there are that many."""
    validation_split: str = "validation"
    """Split of the task for validation; under `running_ood` it is `test`."""
    validate_every: NonNegativeInt = 0
    """Steps between two validations; 0: never (selection needs some)."""
    validation_batches: PositiveInt = 10
    """Number of batches per validation."""
    log_every: PositiveInt = 100
    """Number of steps per compiled call, and between two lines of metrics."""
    checkpoint_every: NonNegativeInt = 1000
    """Steps between two checkpoints, besides the one at the end; a multiple of log_every. 0: only at the end."""
    keep_checkpoints: PositiveInt = 2
    """Checkpoints kept."""
    keep_steps: tuple[int, ...] = ()
    """Steps whose parameters are kept permanently (under `snapshots/`), to inspect a network in the middle of
    training."""
    devices: PositiveInt | None = None
    """Number of devices for batches, and for seeds if batches do not divide evenly. None: as many as possible."""
    seeds_at_once: PositiveInt | None = None
    """Number of seeds whose steps are one computation, a divisor of `seeds`; the others wait. None: all. Fewer need
    less memory, and on a CPU less time for a network that spends nearly all of it in matrix products."""
    growing: NonNegativeInt = 0
    """Steps in which the longest length of the training examples grows, evenly, from the task's shortest to its
    longest training length (a curriculum); 0: all lengths from the start. For tasks that draw fresh examples."""
    widths: PositiveInt = 1
    """Number of evenly spaced widths a training step is compiled for: a batch uses the narrowest one that fits its
    longest input. For batches with inputs of similar length; each width is compiled separately."""

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("validate_every", "checkpoint_every"):
            if getattr(self, name) % self.log_every:
                raise ValueError(
                    f"training.{name} must be a multiple of log_every={self.log_every}, got {getattr(self, name)}"
                )
        if self.seeds % self.concurrent_seeds:
            raise ValueError(f"training.seeds_at_once={self.seeds_at_once} does not divide seeds={self.seeds}")
        if self.selection != "last" and not self.validate_every:
            raise ValueError(f"training.selection={self.selection!r} needs validate_every > 0")
        if self.selection_window > 1 and self.selection_window * self.validate_every > self.steps:
            raise ValueError(
                f"training.selection_window={self.selection_window} validations, one each {self.validate_every} steps, "
                f"are more than {self.steps} steps have"
            )

    @property
    def dtype(self) -> Any:
        """The dtype that the model is given; None: its own."""
        return jnp.bfloat16 if self.precision == "bf16" else None

    @property
    def concurrent_seeds(self) -> int:
        """Number of seeds whose steps are one computation."""
        return self.seeds_at_once or self.seeds

    @property
    def scored_split(self) -> Split:
        """The split that is scored while training."""
        return "test" if self.selection == "running_ood" else self.validation_split

    @property
    def rule(self) -> str:
        """The parameters that are kept, in words."""
        if self.selection == "last":
            return "the parameters after the last step"
        score = "score" if self.selection_window == 1 else f"mean score of {self.selection_window} validations in a row"
        if self.scored_split != "validation":
            return f"the parameters with the best {score} on the split {self.scored_split} seen during training"
        return "the parameters of the best validation" if self.selection_window == 1 else f"those of the best {score}"

    @property
    def state_options(self) -> dict[str, Any]:
        """The arguments that determine the room in a `State`."""
        return {"keep_best": self.selection != "last", "window": self.selection_window}

    @property
    def transformation(self) -> optax.GradientTransformation:
        """The update rule, built for this number of steps."""
        return built(self.optimizer, self.steps)

    @property
    def step_options(self) -> dict[str, Any]:
        """The arguments of `make_advance`."""
        return {
            "batch_size": self.batch_size,
            "at_once": self.seeds_at_once,
            "widths": self.widths,
            "growing": self.growing,
        }

    def device_count(self, available: int | None = None) -> int:
        """Number of devices for batches and seeds, the same number in each process; of `available`, or of all."""
        available, shared_by = available or jax.device_count(), jax.process_count()
        work = self.batch_size * self.concurrent_seeds
        shared = f"batch_size={self.batch_size} times seeds={self.concurrent_seeds}"
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
    """The fields of an experiment that `train` needs."""

    @property
    def task(self) -> Task: ...
    @property
    def training(self) -> Training: ...
    @property
    def bound_model(self) -> nn.Module: ...
