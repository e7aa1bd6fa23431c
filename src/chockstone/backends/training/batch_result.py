"""Batch results: what came of one micro-batch, and of those that several processes computed at the same time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from chockstone.backends.losses.custom_loss import CustomLoss
from chockstone.backends.losses.losses import Loss
from chockstone.backends.training.examples import Example
from chockstone.backends.training.process_group import ProcessGroup


@dataclass(frozen=True, slots=True, eq=False)
class BatchResult:
    logprobs: list[torch.Tensor]  # per example, on the CPU, shaped like its targets
    losses: list[float]  # per example
    metrics: Mapping[str, float]  # summed over the examples
    work: int  # that a custom loss took, by estimate
    terms: list[torch.Tensor]  # of the loss, as logprobs are; empty for a custom loss, which has none per position


def gather_results(
    crew: ProcessGroup, mine: BatchResult, shares: Sequence[Sequence[Example]], loss: Loss
) -> BatchResult:
    """All processes' results as one, in the order of their ranks. They travel as one flat tensor each."""
    if crew.size == 1:
        return mine
    is_custom = isinstance(loss, CustomLoss)
    names = sorted(loss.metrics) if isinstance(loss, CustomLoss) else []
    numbers = [*mine.losses, *(mine.metrics.get(name, 0.0) for name in names), float(mine.work)]
    pieces = (one.flatten().double() for one in (*mine.logprobs, *mine.terms))
    flat = torch.cat([torch.tensor(numbers, dtype=torch.float64), *pieces])
    counts = [sum(math.prod(example.shape) for example in share) for share in shares]
    sizes = [
        len(share) + len(names) + 1 + (count if is_custom else 2 * count)
        for share, count in zip(shares, counts, strict=True)
    ]
    logprobs: list[torch.Tensor] = []
    terms: list[torch.Tensor] = []
    losses: list[float] = []
    metrics = dict.fromkeys(names, 0.0)
    work = 0
    for share, count, theirs in zip(shares, counts, crew.gather(flat, sizes), strict=True):
        losses += theirs[: len(share)].tolist()
        for name, value in zip(names, theirs[len(share) : len(share) + len(names)].tolist(), strict=True):
            metrics[name] += value
        work += int(theirs[len(share) + len(names)])
        positions = theirs[len(share) + len(names) + 1 :].float()
        logprobs += _split(positions[:count], share)
        if not is_custom:
            terms += _split(positions[count:], share)
    return BatchResult(logprobs, losses, metrics, work, terms)


def _split(flat: torch.Tensor, share: Sequence[Example]) -> Iterator[torch.Tensor]:
    for piece, example in zip(torch.split(flat, [math.prod(one.shape) for one in share]), share, strict=True):
        yield piece.view(example.shape)
