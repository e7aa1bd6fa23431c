"""Pass results: gathered over the processes and micro-batches of a pass, and put back into the request's order."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from chockstone.backends.losses.custom_loss import CustomLoss
from chockstone.backends.losses.losses import BuiltInLoss, Loss
from chockstone.backends.losses.policy_metrics import policy_metrics
from chockstone.backends.training.examples import Example
from chockstone.backends.training.process_group import ProcessGroup
from chockstone.wire.codecs.passes import Pass, PassResult
from chockstone.wire.failures import BadRequest

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class BatchResult:
    logprobs: list[torch.Tensor]  # per example, on the CPU, shaped like its targets
    losses: list[float]  # per example
    metrics: Mapping[str, float]  # summed over the examples
    work: int  # estimated cost of a custom loss
    terms: list[torch.Tensor]  # the loss per position, shaped like logprobs; empty for a custom loss


def gather_results(
    process_group: ProcessGroup, mine: BatchResult, shares: Sequence[Sequence[Example]], loss: Loss
) -> BatchResult:
    """Gather the results of all processes, in the order of their ranks. Each sends one flat tensor."""
    if process_group.size == 1:
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
    for share, count, theirs in zip(shares, counts, process_group.gather(flat, sizes), strict=True):
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


class PassOutcome:
    def __init__(self, request: Pass, loss: BuiltInLoss | CustomLoss) -> None:
        self._request = request
        self._loss = loss
        self._logprobs: dict[int, Floats] = {}
        self._losses: dict[int, float] = {}
        self._terms: dict[int, Floats] = {}
        self._custom: dict[str, float] = {}

    def add(self, indices: Sequence[int], result: BatchResult) -> None:
        """Raises BadRequest when a number is not finite."""
        for index, logprobs, loss in zip(indices, result.logprobs, result.losses, strict=True):
            self._logprobs[index], self._losses[index] = logprobs.numpy(), loss
            if not np.isfinite(self._logprobs[index]).all():
                raise BadRequest(
                    f"datum {index}: the model's log-probabilities are not finite; the run's weights have diverged. "
                    "Load an earlier checkpoint and lower the learning rate."
                )
            if not math.isfinite(loss):
                raise BadRequest(
                    f"datum {index}: the loss is not finite; an input is too large, or 'logprobs' far from the model's."
                )
        for index, terms in zip(indices, result.terms, strict=bool(result.terms)):
            self._terms[index] = terms.numpy()
        for name, value in result.metrics.items():
            self._custom[name] = self._custom.get(name, 0.0) + value

    def finish(self) -> PassResult:
        logprobs = tuple(self._logprobs[index] for index in range(len(self._request.data)))
        count = len(logprobs)
        metrics = {
            "loss:sum": math.fsum(self._losses.values()),
            "tokens:sum": float(sum(len(datum.tokens) for datum in self._request.data)),
        }
        metrics |= {name: v / count if name.endswith(":mean") else v for name, v in self._custom.items()}
        if isinstance(self._loss, BuiltInLoss) and "advantages" in self._loss.kind.required:
            metrics |= policy_metrics(self._request.data, logprobs, self._loss)
        terms = tuple(self._terms[index] for index in range(len(self._terms)))
        return PassResult(logprobs, metrics, elementwise_loss=terms)
