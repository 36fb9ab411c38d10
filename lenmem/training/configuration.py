"""The settings of a training, as plain data."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, Protocol

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from lenmem.fields import NonNegativeInt, PositiveInt, Seed, check_fields
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
    seed: Seed = 0
    """Seed of the random key from which everything is drawn."""
    precision: Literal["f32", "bf16"] = "f32"
    """The dtype of the computation, in training and evaluation. `f32`: that of the model, which is float32 unless it
    has a dtype. `bf16`: bfloat16; parameters, memories, sums, softmaxes and the loss stay float32 (`docs/gpu.md`)."""
    optimizer: Optimizer | optax.GradientTransformation = Optimizer()
    """The update rule. An Optax transformation works too, but is not saved: it must be passed again to resume."""
    selection: Literal["last", "validation", "running_ood"] = "last"
    """The selected parameters. `last`: those after the last step. `validation`: those of the best validation (the
    latest in case of ties). `running_ood`: those with the best score on the *test* range during training; because this
    selects on test lengths, results are marked accordingly."""
    selection_metric: str = "exact_match"
    """Metric for the selection. The largest value is best; for `loss` and `perplexity` the smallest."""
    selection_window: PositiveInt = 1
    """The score is the mean over this number of latest validations, and is defined once there are as many."""
    validation_split: str = "validation"
    """Split of the task for validation; with `running_ood` it is `test`."""
    validate_every: NonNegativeInt = 0
    """Steps between two validations; 0: no validation, so `selection` must be `last`."""
    validation_batches: PositiveInt = 10
    """Number of batches per validation."""
    log_every: PositiveInt = 100
    """Number of steps per compiled call, and between two lines of metrics."""
    checkpoint_every: NonNegativeInt = 1000
    """Steps between two checkpoints, a multiple of log_every, in addition to the one at the end. 0: only at the end."""
    keep_checkpoints: PositiveInt = 2
    """Number of checkpoints that are not deleted."""
    keep_steps: tuple[int, ...] = ()
    """Steps whose parameters are stored permanently (in `snapshots/`), to inspect a network in the middle of training.
    A step is rounded up to the end of a compiled call, a multiple of log_every or the last step."""
    devices: PositiveInt | None = None
    """Number of devices for batches, and for seeds if batches do not divide evenly. None: as many as possible. On a CPU
    `lenmem train` makes each device a thread of the processor; without this field there is one."""
    seeds_at_once: PositiveInt | None = None
    """Number of seeds whose steps are one computation, a divisor of `seeds`; the others are trained afterwards. None:
    all. Fewer seeds at once need less memory, and on a CPU less time if nearly all of it is spent in matrix
    products."""
    growing: NonNegativeInt = 0
    """Number of steps during which the longest length of the training examples grows linearly from the task's shortest
    to its longest training length (a curriculum); 0: all lengths from the start. For tasks that draw fresh examples."""
    widths: PositiveInt = 1
    """Number of evenly spaced widths for which a training step is compiled. A batch uses the narrowest width that fits
    its longest input, with the answer slots of inputs of this width. Useful if the inputs of a batch have similar
    lengths; each width is compiled separately."""

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("validate_every", "checkpoint_every"):
            if getattr(self, name) % self.log_every:
                raise ValueError(
                    f"training.{name} must be a multiple of log_every={self.log_every}, got {getattr(self, name)}"
                )
        if wrong := [step for step in self.keep_steps if not 1 <= step <= self.steps]:
            raise ValueError(f"training.keep_steps has {wrong[0]}; the training has steps 1 to {self.steps}")
        if self.seeds % self.concurrent_seeds:
            raise ValueError(f"training.seeds_at_once={self.seeds_at_once} does not divide seeds={self.seeds}")
        if self.selection != "last" and not self.validate_every:
            raise ValueError(f"training.selection={self.selection!r} needs validate_every > 0")
        # The last step is validated, too.
        if self.validate_every and self.selection_window > max(1, -(-self.steps // self.validate_every)):
            raise ValueError(
                f"training.selection_window={self.selection_window} validations, one each {self.validate_every} steps, "
                f"are more than {self.steps} steps have"
            )

    @property
    def dtype(self) -> Any:
        """The dtype that is set in the model; None: its own dtype."""
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
        """A description of the selected parameters."""
        if self.selection == "last":
            return "the parameters after the last step"
        score = "score" if self.selection_window == 1 else f"mean score of {self.selection_window} validations in a row"
        if self.scored_split != "validation":
            return f"the parameters with the best {score} on the split {self.scored_split} seen during training"
        return "the parameters of the best validation" if self.selection_window == 1 else f"those of the best {score}"

    @property
    def state_options(self) -> dict[str, Any]:
        """The arguments that determine the structure of a `State`."""
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
            there = f"training.devices is {self.devices}, but there {'is' if available == 1 else 'are'} {available}"
            if jax.default_backend() == "cpu":
                setting = f"jax.config.update('jax_num_cpu_devices', {self.devices})"
                there += f"; {setting}, before anything is computed, divides a CPU"
            raise ValueError(there)
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
