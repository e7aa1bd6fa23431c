"""The rollout worker: samples answers to a problem from a policy and gets their rewards.

The tokenizer runs in one thread of its own, because it is not thread-safe, and never on the event loop.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import tinker
from tinker import types

from chockstone.trainers.collector import Collector
from chockstone.trainers.config import TrainerConfig
from chockstone.trainers.errors import TrainerError
from chockstone.trainers.rollouts.environment import Completion, Environment, Problem
from chockstone.trainers.rollouts.generation import SamplingPolicy
from chockstone.trainers.rollouts.loader import ProblemDraw
from chockstone.trainers.rollouts.reward_pool import RewardPool
from chockstone.trainers.rollouts.rollouts import Logprobs, RolloutGroup, Sample, Tokens


class RolloutWorker:
    """``base``: the base model, if the logprobs of samples are compared with it."""

    def __init__(
        self,
        environment: Environment,
        tokenizer: Any,  # Any: transformers has no type for all of them
        config: TrainerConfig,
        collector: Collector,
        base: tinker.SamplingClient | None = None,
    ) -> None:
        self._environment = environment
        self._tokenizer = tokenizer
        self._config = config
        self._collector = collector
        self._base = base
        self._tokenizing = ThreadPoolExecutor(1, "chockstone-tokenizer")
        self._reward_pool = RewardPool(environment, collector)

    async def generate_group(self, draw: ProblemDraw, policy: SamplingPolicy) -> RolloutGroup:
        """Generate all samples of a draw. The same policy and draw give the same tokens."""
        problem = await self._reward_pool.problem(draw.index)
        with self._collector.timed("time/generate_group"):
            samples, prompt = await self._answer(
                problem,
                policy,
                count=self._config.group_size,
                temperature=self._config.temperature,
                seed=draw_seed(self._config.seed, draw.number),
                base=self._base,
            )
        _check(samples, problem, count=self._config.group_size)
        self._collector.add("tokens/generated", sum(len(sample.tokens) for sample in samples))
        return RolloutGroup(draw, problem.problem_id, policy.version, prompt, tuple(samples))

    async def evaluate(self, problems: Sequence[Problem], policy: SamplingPolicy) -> dict[str, float]:
        """Answer each problem once, greedily, and return metrics of the rewards."""
        rewards = await asyncio.gather(*(self._greedy_reward(problem, policy) for problem in problems))
        return {
            "reward/mean": sum(rewards) / len(rewards),
            "reward/least": min(rewards),
            "reward/most": max(rewards),
            "problems": float(len(rewards)),
        }

    def close(self) -> None:
        self._tokenizing.shutdown(wait=False, cancel_futures=True)
        self._reward_pool.close()

    async def _greedy_reward(self, problem: Problem, policy: SamplingPolicy) -> float:
        [sample], _ = await self._answer(problem, policy, count=1, temperature=0.0, seed=0, base=None)
        return sample.reward

    async def _answer(
        self,
        problem: Problem,
        policy: SamplingPolicy,
        *,
        count: int,
        temperature: float,
        seed: int,
        base: tinker.SamplingClient | None,
    ) -> tuple[list[Sample], Tokens]:
        loop = asyncio.get_running_loop()
        prompt = await loop.run_in_executor(self._tokenizing, self._encode, problem.prompt)
        if not len(prompt):
            raise TrainerError(f"the prompt of problem {problem.problem_id!r} has no tokens: {problem.prompt!r}")
        params = types.SamplingParams(
            max_tokens=self._config.max_tokens,
            temperature=temperature,
            seed=seed,
            stop=list(self._environment.stop) or None,
        )
        answered = await policy.sampler.sample_async(
            prompt=types.ModelInput.from_ints(prompt.tolist()), num_samples=count, sampling_params=params
        )
        sequences = answered.sequences
        tokens = [np.asarray(sequence.tokens, np.int32) for sequence in sequences]
        texts = await loop.run_in_executor(self._tokenizing, self._decode, tokens)
        completions = [
            Completion(text, tuple(chosen.tolist()), sequence.stop_reason == "length")
            for text, chosen, sequence in zip(texts, tokens, sequences, strict=True)
        ]
        rewards = await self._reward_pool.rewards(problem, completions)
        bases = await self._base_logprobs(base, prompt, tokens)
        samples = [
            Sample(
                chosen,
                np.asarray(sequence.logprobs, np.float32),
                reward,
                completion.is_truncated,
                from_base,
            )
            for chosen, sequence, completion, reward, from_base in zip(
                tokens, sequences, completions, rewards, bases, strict=True
            )
        ]
        return samples, prompt

    async def _base_logprobs(
        self, base: tinker.SamplingClient | None, prompt: Tokens, tokens: Sequence[Tokens]
    ) -> list[Logprobs | None]:
        if base is None:
            return [None] * len(tokens)
        texts = [types.ModelInput.from_ints([*prompt.tolist(), *chosen.tolist()]) for chosen in tokens]
        found = await asyncio.gather(*(base.compute_logprobs_async(text) for text in texts))
        return [np.asarray(logprobs[len(prompt) :], np.float32) for logprobs in found]

    def _encode(self, prompt: str | tuple[dict[str, str], ...]) -> Tokens:
        if isinstance(prompt, str):
            encoded = self._tokenizer.encode(prompt, add_special_tokens=True)
        else:
            encoded = self._tokenizer.apply_chat_template(
                list(prompt), tokenize=True, return_dict=False, add_generation_prompt=True
            )
        return np.asarray(encoded, np.int32)

    def _decode(self, completions: Sequence[Tokens]) -> list[str]:
        return [str(self._tokenizer.decode(tokens.tolist(), skip_special_tokens=True)) for tokens in completions]


def _check(samples: Sequence[Sample], problem: Problem, *, count: int) -> None:
    """Raises TrainerError for samples that would ruin the weights, or fail only later."""
    if len(samples) != count:
        raise TrainerError(f"the server gave {len(samples)} samples of problem {problem.problem_id!r}, not {count}")
    for sample in samples:
        for whose, logprobs in (("the policy", sample.logprobs), ("the base model", sample.base_logprobs)):
            if logprobs is None:
                continue
            if logprobs.shape != sample.tokens.shape or not np.isfinite(logprobs).all():
                raise TrainerError(
                    f"the server gave no finite logprob of {whose} for each of the {len(sample.tokens)} tokens "
                    f"of a sample of problem {problem.problem_id!r}"
                )


def draw_seed(seed: int, number: int) -> int:
    """Return a seed that depends only on the draw's number and the trainer's seed."""
    digest = hashlib.blake2b(f"{seed}/{number}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 33  # 31 bits, which every server accepts
