"""The settings of a trainer, validated on construction."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, Literal, get_args

from chockstone.trainers.errors import ConfigInvalid

Loss = Literal["importance_sampling", "ppo", "cispo"]
Export = Literal["sampler", "hf"]
Schedule = Literal["constant", "linear", "cosine"]

_AT_LEAST: Final = {
    "steps": 1,
    "batch_size": 1,
    "group_size": 2,
    "rank": 0,
    "max_tokens": 1,
    "staleness": 0,
    "seed": 0,
    "save_every": 0,
    "evaluate_every": 0,
    "warmup_steps": 0,
    "keep": 1,
}


@dataclass(frozen=True, slots=True)
class TrainerConfig:
    """Settings of one run. A resumed run may change all of them except those in ``identity``."""

    base_model: str
    steps: int = 100
    batch_size: int = 16  # problems per step
    group_size: int = 8  # samples per problem; their mean reward is the baseline
    rank: int = 32  # of the LoRA adapter; 0 trains all weights, if the server supports it
    learning_rate: float = 1e-4  # maximum
    schedule: Schedule = "constant"  # of the learning rate after the warm-up; linear and cosine end at zero
    warmup_steps: int = 0  # steps in which the learning rate rises from zero
    weight_decay: float = 0.0
    grad_clip_norm: float = 1.0  # 0: no clipping
    loss: Loss = "importance_sampling"
    loss_config: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))  # {}: the server's defaults
    kl_coefficient: float = 0.0  # of the penalty on the distance to the base model; 0: no penalty
    normalise_advantages: bool = False  # divide by the group's standard deviation
    max_tokens: int = 64
    temperature: float = 1.0
    staleness: int = 1  # maximum age of samples in steps: 0 synchronous, 1 one-step-off, more asynchronous
    concurrency: int | None = None  # groups generated at the same time; None: as many as staleness allows
    seed: int = 0
    save_every: int = 10  # steps; 0: only at the end
    exports: tuple[Export, ...] = ("sampler",)  # saved in addition to the training state
    keep: int = 3  # checkpoints of this run; older ones are deleted, in the store and on the server
    evaluate_every: int = 0  # steps; 0: never
    stop_seconds: float = 60.0  # maximum time to finish a step and save after a cancellation

    def __post_init__(self) -> None:
        for name, least in _AT_LEAST.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ConfigInvalid(f"{name} must be a whole number from {least} on, not {value!r}")
        for name in ("learning_rate", "temperature", "stop_seconds"):
            _check_number(name, getattr(self, name), is_zero_good=False)
        for name in ("weight_decay", "grad_clip_norm", "kl_coefficient"):
            _check_number(name, getattr(self, name), is_zero_good=True)
        concurrency: Any = self.concurrency  # Any: it may come from a file
        is_whole = isinstance(concurrency, int) and not isinstance(concurrency, bool)
        if concurrency is not None and not (is_whole and concurrency >= 1):
            raise ConfigInvalid(f"concurrency must be a whole number from 1 on, or None, not {concurrency!r}")
        if self.loss not in get_args(Loss):
            raise ConfigInvalid(f"loss must be one of {', '.join(get_args(Loss))}, not {self.loss!r}")
        if self.schedule not in get_args(Schedule):
            raise ConfigInvalid(f"schedule must be one of {', '.join(get_args(Schedule))}, not {self.schedule!r}")
        if unknown := set(self.exports) - set(get_args(Export)):
            raise ConfigInvalid(f"exports can be {' and '.join(get_args(Export))}, not {sorted(unknown)}")
        if not self.base_model:
            raise ConfigInvalid("base_model must name a model that the server serves")

    def learning_rate_at(self, step: int) -> float:
        """Return the learning rate after ``step`` steps. It depends on nothing else, so a resume does not change it."""
        if step < self.warmup_steps:
            return self.learning_rate * (step + 1) / (self.warmup_steps + 1)
        left = max(0.0, 1.0 - (step - self.warmup_steps) / max(1, self.steps - self.warmup_steps))
        if self.schedule == "linear":
            return self.learning_rate * left
        if self.schedule == "cosine":
            return self.learning_rate * (1.0 - math.cos(math.pi * left)) / 2.0
        return self.learning_rate

    def identity(self) -> dict[str, Any]:
        """Return the settings that a resumed run must not change."""
        return {name: getattr(self, name) for name in ("base_model", "rank", "batch_size", "group_size", "seed")}


def _check_number(name: str, value: Any, *, is_zero_good: bool) -> None:  # Any: it may come from a file
    if not isinstance(value, int | float) or not math.isfinite(value) or value < 0 or (value == 0 and not is_zero_good):
        raise ConfigInvalid(f"{name} must be {'zero or more' if is_zero_good else 'more than zero'}, not {value!r}")
