"""Contents: what of a Lightning checkpoint an archive holds, and what the archive says about it.

Hyperparameters may be any object. Those that an archive cannot hold are left out and named. Everything else that it
cannot hold is an error, because a run could not resume without it.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, Final

from chockstone.checkpoints.errors import UnstorableValue
from chockstone.checkpoints.format.tree import flatten

log = logging.getLogger(__name__)
FULL: Final = "weights"  # the kind of archives that training resumes from
MODEL: Final = "model"  # of archives without the state of optimizers
_HYPERPARAMETERS: Final = ("hyper_parameters", "datamodule_hyper_parameters")
_TYPES: Final = ("hparams_type", "datamodule_hparams_type")  # classes of OmegaConf


@dataclass(frozen=True, slots=True)
class CheckpointFacts:
    """What is said about a checkpoint in its manifest."""

    step: int | None
    kind: str
    version: str | None
    metrics: Mapping[str, float]


def describe(checkpoint: Mapping[str, Any]) -> CheckpointFacts:
    step = checkpoint.get("global_step")
    kind = MODEL if "loops" in checkpoint and "optimizer_states" not in checkpoint else FULL
    version = checkpoint.get("pytorch-lightning_version")
    return CheckpointFacts(step if isinstance(step, int) else None, kind, version, _scores(checkpoint))


def storable(checkpoint: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The checkpoint with hyperparameters that an archive can hold, and the paths of those it cannot hold."""
    left_out: list[str] = []
    state = {key: value for key, value in checkpoint.items() if key not in _TYPES}
    for key in _HYPERPARAMETERS:
        if key in state:
            state[key] = _prune(_as_container(state[key]), key, left_out)
    return state, tuple(left_out)


def _prune(value: Any, path: str, left_out: list[str]) -> Any:
    if isinstance(value, Mapping):
        pruned = {key: _prune(item, f"{path}.{key}", left_out) for key, item in value.items()}
        return {key: item for key, item in pruned.items() if item is not _LEFT_OUT}
    if type(value) in (list, tuple):
        items = [_prune(item, f"{path}[{index}]", left_out) for index, item in enumerate(value)]
        return type(value)(item for item in items if item is not _LEFT_OUT)
    if isinstance(value, PurePath):
        return str(value)
    try:
        flatten({"value": value})
    except UnstorableValue:
        left_out.append(path)
        return _LEFT_OUT
    return value


_LEFT_OUT: Final = object()


def _as_container(value: Any) -> Any:
    if type(value).__module__.startswith("omegaconf."):
        from omegaconf import OmegaConf

        return OmegaConf.to_container(value)
    return value


def _scores(checkpoint: Mapping[str, Any]) -> dict[str, float]:
    """The metrics that ModelCheckpoint callbacks monitor, as retention and listings use them."""
    scores: dict[str, float] = {}
    callbacks = checkpoint.get("callbacks", {})
    for state in callbacks.values() if isinstance(callbacks, Mapping) else ():
        if isinstance(state, Mapping) and isinstance(state.get("monitor"), str):
            score = state.get("current_score")
            number = float(score) if score is not None else math.nan
            if math.isfinite(number):
                scores[state["monitor"]] = number
    return scores
