"""Rollouts: the samples of a policy for one problem, and their encoding in a checkpoint."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from chockstone.trainers.rollouts.loader import ProblemDraw

Tokens = npt.NDArray[np.int32]
Logprobs = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    tokens: Tokens
    logprobs: Logprobs  # under the policy that sampled them
    reward: float
    is_truncated: bool
    base_logprobs: Logprobs | None = None  # under the base model; only with a KL penalty


@dataclass(frozen=True, slots=True, eq=False)
class RolloutGroup:
    """All samples of one draw."""

    draw: ProblemDraw
    problem_id: str
    version: int  # of the policy
    prompt: Tokens
    samples: tuple[Sample, ...]

    @property
    def rewards(self) -> list[float]:
        return [sample.reward for sample in self.samples]

    def sample_id(self, number: int) -> str:
        """Return an id that is unique in the run and the same after a resume."""
        return f"{self.draw.epoch}/{self.problem_id}/{number}"


def draw_state(draw: ProblemDraw) -> list[int]:
    return [draw.number, draw.epoch, draw.index]


def read_draw(state: Sequence[int]) -> ProblemDraw:
    number, epoch, index = map(operator.index, state)
    if min(number, epoch, index) < 0:
        raise ValueError(f"not a draw: {list(state)}")
    return ProblemDraw(number, epoch, index)


def pack_groups(groups: Sequence[RolloutGroup]) -> dict[str, Any]:
    """Encode groups as a few arrays, which an archive stores without conversion."""
    samples = [sample for group in groups for sample in group.samples]
    bases = [sample.base_logprobs for sample in samples]
    return {
        "draws": [draw_state(group.draw) for group in groups],
        "problem_ids": [group.problem_id for group in groups],
        "versions": [group.version for group in groups],
        "prompts": _join([group.prompt for group in groups], np.int32),
        "sizes": [len(group.samples) for group in groups],
        "tokens": _join([sample.tokens for sample in samples], np.int32),
        "logprobs": _join([sample.logprobs for sample in samples], np.float32),
        "base_logprobs": _join([base for base in bases if base is not None], np.float32),
        "has_base": [base is not None for base in bases],
        "rewards": np.array([sample.reward for sample in samples], np.float64),
        "truncated": [sample.is_truncated for sample in samples],
    }


def unpack_groups(state: Mapping[str, Any]) -> list[RolloutGroup]:
    """Decode the result of ``pack_groups``. Raises KeyError, TypeError, ValueError or the like for anything else."""
    prompts, tokens, logprobs = (iter(_split(state[name])) for name in ("prompts", "tokens", "logprobs"))
    bases = iter(_split(state["base_logprobs"]))
    facts = zip(state["rewards"].tolist(), state["truncated"], state["has_base"], strict=True)
    groups = []
    for draw, problem_id, version, size in zip(
        state["draws"], state["problem_ids"], state["versions"], state["sizes"], strict=True
    ):
        samples = []
        for _ in range(size):
            reward, is_truncated, has_base = next(facts)
            base = next(bases) if has_base else None
            sample = Sample(next(tokens), next(logprobs), reward, is_truncated, base)
            if len(sample.logprobs) != len(sample.tokens) or (base is not None and len(base) != len(sample.tokens)):
                raise ValueError(f"a sample of draw {draw} does not have one logprob per token")
            samples.append(sample)
        groups.append(RolloutGroup(read_draw(draw), problem_id, operator.index(version), next(prompts), tuple(samples)))
    if any(next(rest, None) is not None for rest in (prompts, tokens, logprobs, bases, facts)):
        raise ValueError("there are samples that belong to no group")
    return groups


def _join(arrays: Sequence[npt.NDArray[Any]], dtype: type) -> dict[str, Any]:
    lengths = np.array([len(array) for array in arrays], np.int64)
    return {"lengths": lengths, "values": np.concatenate([np.zeros(0, dtype), *arrays]).astype(dtype)}


def _split(joined: Mapping[str, Any]) -> list[npt.NDArray[Any]]:
    lengths, values = joined["lengths"], joined["values"]
    if (lengths < 0).any() or lengths.sum() != len(values):
        raise ValueError("the lengths do not add up to the number of values")
    return np.split(values, np.cumsum(lengths)[:-1]) if len(lengths) else []
