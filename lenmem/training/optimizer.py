"""Optimisers and learning-rate schedules as plain data.

`Optimizer` is a frozen dataclass: it can be a field of an experiment, a group of command-line options and part of a
saved manifest. `Optimizer.build` turns it into an Optax transformation. The order of operations in one update is

    clip by value -> clip by global norm -> coupled L2 -> adaptive scaling -> momentum -> decoupled decay -> -rate(t)

Numbers may also be traced arrays, so a sweep over learning rates can be one vmapped program.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import jax.typing
import optax

from lenmem.fields import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, UnitInterval, check_fields
from lenmem.types import is_zero

Count = jax.typing.ArrayLike
"""A number of updates."""


@dataclasses.dataclass(frozen=True)
class Constant:
    """A constant learning rate."""

    def __call__(self, count: Count, steps: int) -> jax.Array:
        """The multiplier of the learning rate: 1, with the shape of `count`."""
        return jnp.ones(jnp.shape(count))


@dataclasses.dataclass(frozen=True)
class StepDecay:
    """After `delay` updates, multiplies by `factor` once every `every` updates (Lie-access NTM: 0.99, 20, 3000).

    factor^floor(max(0, t - delay) / every), with t the number of updates already done.
    """

    factor: PositiveFloat = 0.99
    """Multiplier of one decay."""
    every: PositiveInt = 20
    """Updates between two decays."""
    delay: NonNegativeInt = 3000
    """Updates before the first interval begins; the first decay is at `delay + every`."""

    def __post_init__(self):
        check_fields(self)

    def __call__(self, count: Count, steps: int) -> jax.Array:
        """The multiplier of the learning rate at update `count`."""
        decays = jnp.maximum(jnp.asarray(count) - self.delay, 0) // self.every
        return jnp.asarray(self.factor) ** decays


@dataclasses.dataclass(frozen=True)
class Cosine:
    """Linear warm-up, then half a period of a cosine down to `final` at the end of training.

    (t + 1) / warmup for t < warmup, then final + (1 - final) (1 + cos(pi p)) / 2 with p = (t - warmup) / (steps -
    warmup).
    """

    warmup: NonNegativeFloat = 0
    """Updates of linear warm-up; below 1, a fraction of all updates."""
    final: NonNegativeFloat = 0.0
    """Fraction of the learning rate after the last update."""

    def __post_init__(self):
        check_fields(self)

    def __call__(self, count: Count, steps: int) -> jax.Array:
        """The multiplier of the learning rate at update `count` of `steps`."""
        warmup = _updates(self.warmup, steps)
        after = self.final + (1 - self.final) * (1 + jnp.cos(jnp.pi * _progress(count, warmup, steps))) / 2
        return jnp.where(jnp.asarray(count) < warmup, _warm(count, warmup), after)


@dataclasses.dataclass(frozen=True)
class LinearDecay:
    """Linear warm-up, then linear decay to `final` at the end of training.

    (t + 1) / warmup for t < warmup, then 1 - (1 - final) (t - warmup) / (steps - warmup).
    """

    warmup: NonNegativeFloat = 0
    """Updates of linear warm-up; below 1, a fraction of all updates."""
    final: NonNegativeFloat = 0.0
    """Fraction of the learning rate after the last update."""

    def __post_init__(self):
        check_fields(self)

    def __call__(self, count: Count, steps: int) -> jax.Array:
        """The multiplier of the learning rate at update `count` of `steps`."""
        warmup = _updates(self.warmup, steps)
        after = 1 - (1 - self.final) * _progress(count, warmup, steps)
        return jnp.where(jnp.asarray(count) < warmup, _warm(count, warmup), after)


@dataclasses.dataclass(frozen=True)
class WarmupRsqrt:
    """Linear warm-up to 1, then sqrt(warmup / (t + 1)): the Transformer's schedule (Vaswani et al. 2017, Eq. 3)."""

    warmup: PositiveInt = 4000
    """Updates of linear warm-up; the learning rate is the peak, reached at its end."""

    def __post_init__(self):
        check_fields(self)

    def __call__(self, count: Count, steps: int) -> jax.Array:
        """The multiplier of the learning rate at update `count`."""
        return jnp.minimum(_warm(count, self.warmup), jnp.sqrt(self.warmup / (jnp.asarray(count) + 1.0)))


Schedule = Constant | StepDecay | Cosine | LinearDecay | WarmupRsqrt
Name = Literal["adam", "adamw", "rmsprop", "sgd"]


@dataclasses.dataclass(frozen=True)
class Optimizer:
    """Adam, AdamW, RMSProp or SGD, with clipping, weight decay and a learning-rate schedule.

    With gradient g, moments m and v, and the scheduled rate r:
        sgd      u = g
        rmsprop  v <- decay v + (1 - decay) g^2,  u = g / (sqrt(v) + eps),  v_0 = 0   (Torch's epsilon placement)
        adam(w)  Kingma & Ba 2015 with bias correction,  u = m^ / (sqrt(v^) + eps)
        momentum (sgd, rmsprop)  b <- momentum b + u,  u = b
        parameters <- parameters - r u
    """

    name: Name = "adam"
    """The rule."""
    learning_rate: NonNegativeFloat = 1e-3
    """The rate that the schedule multiplies."""
    schedule: Schedule = Constant()
    """How the rate changes during training."""
    clip_norm: PositiveFloat | None = None
    """Scale the gradient of all parameters down to at most this L2 norm."""
    clip_value: PositiveFloat | None = None
    """Clip every entry of the gradient to [-clip_value, clip_value], before `clip_norm`."""
    weight_decay: NonNegativeFloat = 0.0
    """adamw: decoupled, parameters shrink by rate * weight_decay. Others: L2, weight_decay * parameters is added to the
    (clipped) gradient, as in Torch."""
    decay_mask: Literal["all", "kernels"] = "all"
    """Parameters that decay: all, or only those named `kernel` or `..._kernel`."""
    b1: UnitInterval = 0.9
    """Adam's decay of the first moment."""
    b2: UnitInterval = 0.999
    """Adam's decay of the second moment."""
    decay: UnitInterval = 0.99
    """RMSProp's decay of the mean square (Torch's alpha)."""
    eps: NonNegativeFloat = 1e-8
    """Added to the root of the second moment."""
    momentum: UnitInterval = 0.0
    """Momentum of sgd and rmsprop."""

    def __post_init__(self):
        check_fields(self, *(field.name for field in dataclasses.fields(self) if field.name != "schedule"))
        if not (dataclasses.is_dataclass(self.schedule) and callable(self.schedule)):
            allowed = ", ".join(kind.__name__ for kind in get_args(Schedule))
            raise ValueError(
                f"Optimizer.schedule must be {allowed} or a frozen dataclass with __call__(count, steps); "
                f"got {self.schedule!r}"
            )
        if self.name in ("adam", "adamw") and not is_zero(self.momentum):
            raise ValueError(f"momentum belongs to sgd and rmsprop; {self.name} has b1 instead, got {self.momentum}")

    def rate(self, count: Count, steps: int) -> jax.Array:
        """The learning rate of update `count` (from 0) in a training of `steps` updates."""
        return self.learning_rate * self.schedule(count, steps)

    def build(self, steps: int) -> optax.GradientTransformation:
        """The Optax transformation for a training of `steps` updates."""
        if steps < 0:
            raise ValueError(f"steps must not be negative, got {steps}")
        warmup = getattr(self.schedule, "warmup", 0)
        if isinstance(self.schedule, Cosine | LinearDecay) and steps and warmup > steps:
            raise ValueError(f"a warm-up of {warmup} updates is longer than the training of {steps}")
        parts = []
        if self.clip_value is not None:
            parts.append(optax.clip(self.clip_value))
        if self.clip_norm is not None:
            parts.append(optax.clip_by_global_norm(self.clip_norm))
        mask = decay_kernels if self.decay_mask == "kernels" else None
        decay = [optax.add_decayed_weights(self.weight_decay, mask)] if not is_zero(self.weight_decay) else []
        if self.name != "adamw":
            parts += decay
        if self.name in ("adam", "adamw"):
            parts.append(optax.scale_by_adam(b1=self.b1, b2=self.b2, eps=self.eps))
        elif self.name == "rmsprop":
            # As in Torch: first the root of the mean square, then epsilon; the mean square starts at zero, uncorrected.
            parts.append(optax.scale_by_rms(decay=self.decay, eps=self.eps, initial_scale=0, eps_in_sqrt=False))
        if not is_zero(self.momentum):
            # Before the rate, as in Torch: optax.rmsprop would store updates with their old rates.
            parts.append(optax.trace(self.momentum))
        if self.name == "adamw":
            parts += decay
        parts.append(optax.scale_by_learning_rate(lambda count: self.rate(count, steps)))
        return optax.chain(*parts)


def decay_kernels(params: Any) -> Any:
    """True at the leaves named `kernel` or `..._kernel`: `Optimizer.decay_mask == "kernels"`."""

    def is_kernel(path: tuple, _: Any) -> bool:
        name = str(getattr(path[-1], "key", getattr(path[-1], "name", ""))) if path else ""
        return name == "kernel" or name.endswith("_kernel")

    mask = jax.tree_util.tree_map_with_path(is_kernel, params)
    if not any(jax.tree.leaves(mask)):
        raise ValueError('decay_mask="kernels", but no parameter is named "kernel" or "..._kernel"; use "all"')
    return mask


def _updates(warmup: float, steps: int) -> float:
    """The number of warm-up updates, which may be given as a fraction."""
    return round(warmup * steps) if warmup < 1 else warmup


def _warm(count: Count, warmup: float) -> jax.Array:
    """(t + 1) / warmup, at most 1."""
    return jnp.minimum((jnp.asarray(count) + 1.0) / max(warmup, 1), 1.0)


def _progress(count: Count, warmup: float, steps: int) -> jax.Array:
    """Fraction of the time after warm-up that has passed, in [0, 1]."""
    return jnp.clip((jnp.asarray(count) - warmup) / max(steps - warmup, 1), 0.0, 1.0)


def built(rule: Optimizer | optax.GradientTransformation, steps: int) -> optax.GradientTransformation:
    """The update rule for this number of steps."""
    return rule.build(steps) if isinstance(rule, Optimizer) else rule
