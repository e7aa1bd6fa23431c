"""Evaluation: how a policy does on problems that are set aside, while training goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from chockstone.trainers.rollouts.environment import Problem
from chockstone.trainers.rollouts.generation import SamplingPolicy
from chockstone.trainers.rollouts.worker import RolloutWorker


async def evaluate(player: RolloutWorker, problems: Sequence[Problem], policy: SamplingPolicy) -> dict[str, float]:
    """Each problem once, with the answer that the policy thinks most likely."""
    rewards = await asyncio.gather(*(player.try_once(problem, policy) for problem in problems))
    return {
        "reward/mean": sum(rewards) / len(rewards),
        "reward/least": min(rewards),
        "reward/most": max(rewards),
        "problems": float(len(rewards)),
    }
