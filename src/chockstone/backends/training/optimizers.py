"""Optimizers: the parameters of a step, and the arithmetic on a run's flat weights.

The moments are flat tensors like the weights, created at the first step. The formulas are those of PyTorch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

import torch
from torch.optim.adamw import adamw

from chockstone.backends.run_spec import OPTIMIZERS
from chockstone.wire.failures import BadRequest

MOMENTS: Final[Mapping[str, tuple[str, ...]]] = {"adamw": ("exp_avg", "exp_avg_sq"), "sgd": ("momentum_buffer",)}

_SHARED = ("learning_rate", "weight_decay", "grad_clip_norm")
_TAKES: Mapping[str, tuple[str, ...]] = {
    "adamw": (*_SHARED, "beta1", "beta2", "eps"),
    "sgd": (*_SHARED, "momentum"),
}
_BELOW_ONE = ("beta1", "beta2", "momentum")


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimStep:
    """Parameters of one step. Each family reads those that it takes."""

    family: str = "adamw"
    learning_rate: float = 1e-4
    weight_decay: float = 0.0  # decoupled in AdamW, part of the gradient in SGD
    grad_clip_norm: float = 0.0  # of all gradients together; 0: off
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-12
    momentum: float = 0.0

    @classmethod
    def parse(cls, params: Mapping[str, Any]) -> Self:
        """Parse what a client sent as ``adam_params`` (without a "type") or ``optimizer_params`` (with one)."""
        family = params.get("type", "adamw")
        if family not in OPTIMIZERS:
            raise BadRequest(
                f"the optimizer {family!r:.80} is not supported here; choose one of {', '.join(OPTIMIZERS)}."
            )
        given = {key: value for key, value in params.items() if key != "type"}
        if unknown := sorted(set(given) - set(_TAKES[family])):
            raise BadRequest(f"{family} takes no {unknown[0]!r:.80}; it takes {', '.join(_TAKES[family])}.")
        if family != "adamw" and "learning_rate" not in given:
            raise BadRequest(f"{family} needs a learning_rate.")
        return cls(family=family, **{key: _number(family, key, value) for key, value in given.items()})


def _number(family: str, key: str, value: object) -> float:
    limit = 1.0 if key in _BELOW_ONE else math.inf
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < limit:
        bounds = "from 0 up to but not including 1" if key in _BELOW_ONE else "finite and not negative"
        raise BadRequest(f"{family}: {key} must be a number {bounds}, not {value!r:.80}.")
    if key == "eps" and value == 0:
        raise BadRequest(f"{family}: eps must be greater than 0; a weight without gradient would be divided by it.")
    if value > 1e30:
        raise BadRequest(f"{family}: {key} is {value!r:.80}, which is too large for 32-bit arithmetic.")
    return float(value)


class Optimizer:
    """Moments and step counter of one run."""

    def __init__(self, family: str) -> None:
        self.family = family
        self.steps = 0
        self.moments: dict[str, torch.Tensor] = {}  # empty until the first step

    def make_moments(self, weights: torch.Tensor) -> None:
        """Create the moments, unless they exist. It may run out of memory, so call it before anything is changed."""
        if not self.moments:
            self.moments = {name: torch.zeros_like(weights) for name in MOMENTS[self.family]}

    def update(self, weights: torch.Tensor, gradient: torch.Tensor, step: OptimStep) -> None:
        """Change ``weights`` in place. ``gradient`` may be changed, too."""
        self.make_moments(weights)
        {"adamw": self._adamw, "sgd": self._sgd}[self.family](weights, gradient, step)
        self.steps += 1

    def _adamw(self, weights: torch.Tensor, gradient: torch.Tensor, step: OptimStep) -> None:
        adamw(
            [weights],
            [gradient],
            [self.moments["exp_avg"]],
            [self.moments["exp_avg_sq"]],
            [],
            [torch.tensor(float(self.steps), device=weights.device)],
            fused=True,
            amsgrad=False,
            beta1=step.beta1,
            beta2=step.beta2,
            lr=step.learning_rate,
            weight_decay=step.weight_decay,
            eps=step.eps,
            maximize=False,
        )

    def _sgd(self, weights: torch.Tensor, gradient: torch.Tensor, step: OptimStep) -> None:
        gradient.add_(weights, alpha=step.weight_decay)
        buffer = self.moments["momentum_buffer"].mul_(step.momentum).add_(gradient)
        weights.add_(buffer, alpha=-step.learning_rate)


def clip(gradient: torch.Tensor, max_norm: float, *, norm: float) -> None:
    """Scale ``gradient`` down in place to ``max_norm``, unless that is 0. ``norm`` is that of the whole gradient."""
    if 0 < max_norm < norm + 1e-6:  # the formula of PyTorch
        gradient.mul_(max_norm / (norm + 1e-6))
