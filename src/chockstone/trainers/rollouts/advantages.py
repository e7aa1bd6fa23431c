"""Compute advantages (reward minus the mean of the group) and make the datums that a server trains on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from tinker import types

from chockstone.trainers.config import TrainerConfig
from chockstone.trainers.rollouts.rollouts import RolloutGroup, Sample

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class TrainBatch:
    """The datums of one optimizer step."""

    data: list[types.Datum]  # [] if all advantages are zero
    advantages: list[list[float]]  # per group and sample, before the KL penalty
    kl_to_base: float | None  # per token, estimated from the samples


def make_train_batch(groups: Sequence[RolloutGroup], config: TrainerConfig) -> TrainBatch:
    """Call in a thread: large batches take too long for the event loop."""
    advantages = [group_advantages(group.rewards, normalise=config.normalise_advantages) for group in groups]
    distances = [[_distance(sample) for sample in group.samples] for group in groups]
    known = [distance for of_group in distances for distance in of_group if distance is not None and len(distance)]
    mean = float(np.concatenate(known).mean()) if known else None
    data = []
    for group, of_group, distances_of_group in zip(groups, advantages, distances, strict=True):
        for sample, advantage, distance in zip(group.samples, of_group, distances_of_group, strict=True):
            of_tokens = np.full(len(sample.tokens), advantage, np.float32)
            if distance is not None and mean is not None and config.kl_coefficient:
                of_tokens += config.kl_coefficient * (mean - distance)  # centred, so that it does not penalise length
            if of_tokens.any():
                data.append(_datum(group, sample, of_tokens))
    return TrainBatch(data, advantages, mean)


def group_advantages(rewards: Sequence[float], *, normalise: bool) -> list[float]:
    """Return the rewards minus their mean; exactly zero for all if the rewards are equal."""
    if len(set(rewards)) <= 1:
        return [0.0] * len(rewards)
    values = np.asarray(rewards, np.float64)
    centred = values - values.mean()
    if normalise:
        centred /= centred.std() + 1e-6
    return [float(value) for value in centred]


def _distance(sample: Sample) -> Floats | None:
    return None if sample.base_logprobs is None else sample.logprobs - sample.base_logprobs


def _datum(group: RolloutGroup, sample: Sample, advantages: Floats) -> types.Datum:
    text = np.concatenate([group.prompt, sample.tokens])
    unsampled = np.zeros(len(group.prompt) - 1, np.float32)
    given: Any = {  # Any: the SDK converts arrays
        "target_tokens": types.TensorData.from_numpy(text[1:].astype(np.int64)),
        "logprobs": types.TensorData.from_numpy(np.concatenate([unsampled, sample.logprobs])),
        "advantages": types.TensorData.from_numpy(np.concatenate([unsampled, advantages])),
    }
    return types.Datum(model_input=types.ModelInput.from_ints(text[:-1].tolist()), loss_fn_inputs=given)
