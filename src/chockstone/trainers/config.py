"""The settings of a trainer, checked when they are made."""

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
    """One run of a trainer. ``steps`` and what is saved may differ when it is resumed; see ``identity``."""

    base_model: str
    steps: int = 100
    batch_size: int = 16  # problems in a step
    group_size: int = 8  # samples of each; their mean reward is the baseline
    rank: int = 32  # of the adapter; 0 trains all weights, where the server can
    learning_rate: float = 1e-4  # the highest
    schedule: Schedule = "constant"  # of it, from the warm-up to the last step, where the others come to zero
    warmup_steps: int = 0  # in which it rises from zero
    weight_decay: float = 0.0
    grad_clip_norm: float = 1.0  # 0: none
    loss: Loss = "importance_sampling"
    loss_config: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))  # {}: the server's own
    kl_coefficient: float = 0.0  # of the penalty on leaving the base model; 0: none
    normalise_advantages: bool = False  # divide by the group's standard deviation
    max_tokens: int = 64
    temperature: float = 1.0
    staleness: int = 1  # steps that samples may be old: 0 synchronous, 1 one-step-off, more asynchronous
    concurrency: int | None = None  # groups generated at once; None: all that staleness allows
    seed: int = 0
    save_every: int = 10  # steps; 0: only at the end
    exports: tuple[Export, ...] = ("sampler",)  # saved beside the training state
    keep: int = 3  # checkpoints of this run; older ones are deleted, here and on the server
    evaluate_every: int = 0  # steps; 0: never
    stop_seconds: float = 60.0  # to finish a step and save when it is cancelled; the server may be gone

    def __post_init__(self) -> None:
        for name, least in _AT_LEAST.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ConfigInvalid(f"{name} must be a whole number from {least} on, not {value!r}")
        for name in ("learning_rate", "temperature", "stop_seconds"):
            _check_number(name, getattr(self, name), is_zero_good=False)
        for name in ("weight_decay", "grad_clip_norm", "kl_coefficient"):
            _check_number(name, getattr(self, name), is_zero_good=True)
        concurrency: Any = self.concurrency  # Any: what a file said
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
        """For the step that follows ``step`` others. It depends on nothing else, so a resumed run has the same."""
        if step < self.warmup_steps:
            return self.learning_rate * (step + 1) / (self.warmup_steps + 1)
        left = max(0.0, 1.0 - (step - self.warmup_steps) / max(1, self.steps - self.warmup_steps))
        if self.schedule == "linear":
            return self.learning_rate * left
        if self.schedule == "cosine":
            return self.learning_rate * (1.0 - math.cos(math.pi * left)) / 2.0
        return self.learning_rate

    def identity(self) -> dict[str, Any]:
        """What must be the same in every life of a run: with anything else it would be another run."""
        return {name: getattr(self, name) for name in ("base_model", "rank", "batch_size", "group_size", "seed")}


def _check_number(name: str, value: Any, *, is_zero_good: bool) -> None:  # Any: what a file said
    if not isinstance(value, int | float) or not math.isfinite(value) or value < 0 or (value == 0 and not is_zero_good):
        raise ConfigInvalid(f"{name} must be {'zero or more' if is_zero_good else 'more than zero'}, not {value!r}")
