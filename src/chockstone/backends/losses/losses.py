"""Losses: what a pass minimises, from the log-probabilities of its target tokens.

Every loss is a sum over all positions and targets. With logp the model's log-probabilities, q the input "logprobs" and
A the "advantages", the ratio is r = exp(logp - q).

Shapes: N positions, K targets; the formulas are elementwise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

import torch

from chockstone.backends.losses.custom_loss import CustomLoss
from chockstone.wire.failures import BadRequest

Inputs = Mapping[str, torch.Tensor]
Options = Mapping[str, float]
Formula = Callable[[torch.Tensor, Inputs, Options], torch.Tensor]

CLIPS: Final = ("clip_low_threshold", "clip_high_threshold")


class Loss(Protocol):
    @property
    def whole_datum(self) -> bool:
        """Whether the loss needs all log-probabilities of exactly one datum."""
        ...

    def __call__(self, logprobs: torch.Tensor, inputs: Inputs) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        """Returns terms to be summed, differentiable in ``logprobs``, and metrics to be summed over datums."""
        ...


@dataclass(frozen=True, slots=True)
class LossKind:
    formula: Formula
    required: tuple[str, ...]  # inputs besides target_tokens, each of its shape
    optional: Mapping[str, float]  # inputs, with the value of an absent input
    options: Mapping[str, float]  # with defaults; an option named like an optional input replaces its default
    whole_datum: bool = False


@dataclass(frozen=True, slots=True)
class BuiltInLoss:
    """A kind of loss with its options filled in."""

    name: str
    kind: LossKind
    options: Options

    @property
    def whole_datum(self) -> bool:
        return self.kind.whole_datum

    def default(self, name: str) -> float:
        return self.options.get(name, self.kind.optional[name])

    def __call__(self, logprobs: torch.Tensor, inputs: Inputs) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        return self.kind.formula(logprobs, inputs, self.options), {}


def _cross_entropy(logprobs: torch.Tensor, inputs: Inputs, _: Options) -> torch.Tensor:
    return -inputs["weights"] * logprobs


def _importance_sampling(logprobs: torch.Tensor, inputs: Inputs, _: Options) -> torch.Tensor:
    return -torch.exp(logprobs - inputs["logprobs"]) * inputs["advantages"]


def _ppo(logprobs: torch.Tensor, inputs: Inputs, _: Options) -> torch.Tensor:
    return _clipped(torch.exp(logprobs - inputs["logprobs"]), inputs)


def _clipped(ratio: torch.Tensor, inputs: Inputs) -> torch.Tensor:
    return -torch.minimum(ratio * inputs["advantages"], _clip(ratio, inputs) * inputs["advantages"])


def _clip(ratio: torch.Tensor, inputs: Inputs) -> torch.Tensor:
    return torch.clamp(ratio, inputs["clip_low_threshold"], inputs["clip_high_threshold"])


def _cispo(logprobs: torch.Tensor, inputs: Inputs, _: Options) -> torch.Tensor:
    ratio = torch.exp(logprobs.detach() - inputs["logprobs"])
    return -_clip(ratio, inputs) * logprobs * inputs["advantages"]


def _dro(logprobs: torch.Tensor, inputs: Inputs, options: Options) -> torch.Tensor:
    distance = (logprobs - inputs["logprobs"]).square()
    return -(logprobs * inputs["advantages"] - 0.5 * options["beta"] * distance)


def _gspo(logprobs: torch.Tensor, inputs: Inputs, _: Options) -> torch.Tensor:
    """One ratio for the whole sequence, through which each token gets its own gradient."""
    mask = (inputs["sequence_ratio_mask"] != 0).to(logprobs.dtype)
    mean = ((logprobs.detach() - inputs["logprobs"]) * mask).sum() / mask.sum().clamp(min=1)
    return _clipped(torch.exp(mean) * torch.exp(logprobs - logprobs.detach()), inputs)


_POLICY = ("logprobs", "advantages")
_PPO_CLIPS = {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}
_CISPO_CLIPS = {"clip_low_threshold": 0.0, "clip_high_threshold": 4.0}

KINDS: Final[Mapping[str, LossKind]] = {
    "cross_entropy": LossKind(_cross_entropy, (), {"weights": 1.0}, {}),
    "importance_sampling": LossKind(_importance_sampling, _POLICY, {}, {}),
    "ppo": LossKind(_ppo, _POLICY, _PPO_CLIPS, _PPO_CLIPS),
    "cispo": LossKind(_cispo, _POLICY, _CISPO_CLIPS, _CISPO_CLIPS),
    "dro": LossKind(_dro, _POLICY, {}, {"beta": 0.05}),
    "gspo": LossKind(_gspo, (*_POLICY, "sequence_ratio_mask"), _PPO_CLIPS, _PPO_CLIPS, whole_datum=True),
}


def choose_loss(
    name: str, options: Mapping[str, float | str], custom: Mapping[str, CustomLoss]
) -> BuiltInLoss | CustomLoss:
    """The loss that a request names. ``custom`` are the uploaded losses by id."""
    if name == "custom":
        return _choose_custom(options, custom)
    kind = KINDS.get(name)
    if kind is None:
        raise BadRequest(f"there is no loss {name!r:.80}; this server has {', '.join(KINDS)} and custom.")
    values = dict(kind.options)
    for key, value in options.items():
        if key not in kind.options:
            known = f"its options are {', '.join(kind.options)}" if kind.options else "it has no options"
            raise BadRequest(f"the loss {name!r} has no option {key!r:.80}; {known}.")
        if isinstance(value, str) or not math.isfinite(value) or value < 0:
            raise BadRequest(f"the option {key!r} of {name!r} must be a number, 0 or more, not {value!r:.80}.")
        values[key] = float(value)
    if CLIPS[0] in values and values[CLIPS[0]] > values[CLIPS[1]]:
        raise BadRequest(f"{name}: {CLIPS[0]} {values[CLIPS[0]]} is above {CLIPS[1]} {values[CLIPS[1]]}.")
    return BuiltInLoss(name, kind, values)


def _choose_custom(options: Mapping[str, float | str], custom: Mapping[str, CustomLoss]) -> CustomLoss:
    loss_id = options.get("loss_id")
    if not isinstance(loss_id, str) or len(options) != 1:
        raise BadRequest("the loss 'custom' takes one option, loss_id: the id that create_custom_loss returned.")
    if loss_id not in custom:
        raise BadRequest(f"there is no custom loss {loss_id!r:.80}; create it again with create_custom_loss.")
    return custom[loss_id]
