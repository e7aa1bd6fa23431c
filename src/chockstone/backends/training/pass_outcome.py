"""Outcomes: a pass's results, gathered over its micro-batches and put back into the request's order."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from chockstone.backends.losses.custom_loss import CustomLoss
from chockstone.backends.losses.losses import BuiltInLoss
from chockstone.backends.losses.policy_metrics import policy_metrics
from chockstone.backends.training.batch_result import BatchResult
from chockstone.wire.codecs.passes import Pass, PassResult
from chockstone.wire.failures import BadRequest

Floats = npt.NDArray[np.float32]


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
