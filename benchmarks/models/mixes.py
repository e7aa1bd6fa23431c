"""Length mixes: batches like those of supervised fine-tuning and of reinforcement learning.

Lengths are log-normal, as those of chats and answers are. A sequence is its tokens, and a weight for each: 0 for the
tokens of a prompt.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

Tokens = list[int]


@dataclass(frozen=True, slots=True)
class Sequence:
    tokens: Tokens
    weights: list[float]  # of each token after the first

    @property
    def positions(self) -> int:
        return len(self.tokens) - 1


@dataclass(frozen=True, slots=True)
class _Lengths:
    """A log-normal distribution, cut off at both ends."""

    median: int
    spread: float  # standard deviation of the logarithm
    least: int
    most: int

    def draw(self, source: random.Random) -> int:
        return min(self.most, max(self.least, round(math.exp(source.gauss(math.log(self.median), self.spread)))))


_CHAT_PROMPT: Final = _Lengths(median=120, spread=0.8, least=10, most=1500)
_CHAT_ANSWER: Final = _Lengths(median=160, spread=0.8, least=5, most=1500)
_PROBLEM: Final = _Lengths(median=200, spread=0.4, least=60, most=800)
_ROLLOUT: Final = _Lengths(median=150, spread=0.6, least=16, most=1024)
_GROUP: Final = 16  # rollouts of one problem


def chats(count: int, *, vocab_size: int, seed: int) -> list[Sequence]:
    """Supervised fine-tuning: one prompt and one answer each."""
    source = random.Random(seed)
    return [
        _sequence(source, _tokens(source, _CHAT_PROMPT.draw(source), vocab_size), _CHAT_ANSWER, 1.0, vocab_size)
        for _ in range(count)
    ]


def rollouts(count: int, *, vocab_size: int, seed: int) -> list[Sequence]:
    """Reinforcement learning: groups of answers to the same problem, each with its advantage."""
    source = random.Random(seed)
    found: list[Sequence] = []
    while len(found) < count:
        prompt = _tokens(source, _PROBLEM.draw(source), vocab_size)
        found += [_sequence(source, prompt, _ROLLOUT, source.gauss(0, 1), vocab_size) for _ in range(_GROUP)]
    return found[:count]


def _sequence(source: random.Random, prompt: Tokens, answer: _Lengths, weight: float, vocab_size: int) -> Sequence:
    length = answer.draw(source)
    return Sequence(prompt + _tokens(source, length, vocab_size), [0.0] * (len(prompt) - 1) + [weight] * length)


def _tokens(source: random.Random, length: int, vocab_size: int) -> Tokens:
    return [source.randrange(vocab_size) for _ in range(length)]


def uniform(count: int, length: int, *, vocab_size: int, seed: int) -> list[Sequence]:
    """Sequences that train ``length`` positions each."""
    source = random.Random(seed)
    return [Sequence(_tokens(source, length + 1, vocab_size), [1.0] * length) for _ in range(count)]


MIXES: Final[Mapping[str, Callable[..., list[Sequence]]]] = {"chats": chats, "rollouts": rollouts}
