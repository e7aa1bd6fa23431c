"""Options of ``chockstone train`` that are settings of the trainer, each under its name in ``TrainerConfig``.

``TrainerConfig`` checks the values; here are the flags, their help and the defaults that the help shows.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final, Literal

from chockstone.cli.settings.fields import setting
from chockstone.cli.settings.values import ValueKind, choice

Schedule = Literal["constant", "linear", "cosine"]
Loss = Literal["importance_sampling", "ppo", "cispo"]


def _unchecked(value: object, _base: Path) -> object:
    return value


_COUNT: Final = ValueKind("N", _unchecked, flag_type=int)
_NUMBER: Final = ValueKind("X", _unchecked, lambda number: f"{number:g}", flag_type=float)
_EXPORTS: Final = ValueKind("sampler|hf", _unchecked, flag_type=list[str])


@dataclass(frozen=True, slots=True)
class TrainOptions:
    TITLE: ClassVar = "Training"

    steps: object = setting(_COUNT, 100, "Number of optimizer steps, including those of earlier starts.")
    batch_size: object = setting(_COUNT, 16, "Number of problems in a step.")
    group_size: object = setting(_COUNT, 8, "Number of samples of each problem.")
    rank: object = setting(_COUNT, 32, "Rank of the LoRA adapter; 0 trains all weights.")
    learning_rate: object = setting(_NUMBER, 1e-4, "Maximum learning rate of Adam.")
    schedule: object = setting(
        choice(Schedule), "constant", "Schedule of the learning rate; linear and cosine end at zero."
    )
    warmup_steps: object = setting(_COUNT, 0, "Number of steps in which the learning rate rises from zero.")
    loss: object = setting(choice(Loss), "importance_sampling", "Loss function.")
    kl_coefficient: object = setting(_NUMBER, 0.0, "Weight of the penalty on the distance to the initial model.")
    staleness: object = setting(
        _COUNT, 1, "Maximum age of samples in steps: 0 synchronous, 1 one-step-off, more asynchronous."
    )
    concurrency: object = setting(
        _COUNT, None, "Maximum number of problems sampled at once.", default_text="as many as staleness allows"
    )
    max_tokens: object = setting(_COUNT, 64, "Maximum number of tokens of an answer.")
    temperature: object = setting(_NUMBER, 1.0, "Sampling temperature.")
    seed: object = setting(_COUNT, 0, "Seed of the adapter, the order of problems and the samples.")
    save_every: object = setting(_COUNT, 10, "Interval between checkpoints, in steps; 0 saves only at the end.")
    exports: object = setting(
        _EXPORTS,
        ("sampler",),
        "Format that is saved in addition to the training state (repeatable).",
        default_text="sampler",
    )
    keep: object = setting(_COUNT, 3, "Number of checkpoints to keep; older ones are deleted.")
    evaluate_every: object = setting(_COUNT, 0, "Interval between evaluations, in steps; 0 never evaluates.")
