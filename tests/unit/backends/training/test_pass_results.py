from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from chockstone.backends.losses.losses import choose_loss
from chockstone.backends.training.examples import Example
from chockstone.backends.training.pass_results import BatchResult, PassOutcome, gather_results
from chockstone.backends.training.process_group import SINGLE_PROCESS, SingleProcess
from chockstone.wire.codecs.passes import Datum, Pass
from chockstone.wire.failures import BadRequest

LOSS = choose_loss("cross_entropy", {}, {})


def example(index: int, positions: int) -> Example:
    tokens = torch.zeros(positions, dtype=torch.int64)
    return Example(index=index, tokens_N=tokens, targets_NK=tokens.view(-1, 1), shape=(positions,), inputs={})


def result(*logprobs: Sequence[float]) -> BatchResult:
    tensors = [torch.tensor(each) for each in logprobs]
    return BatchResult(tensors, [-float(each.sum()) for each in tensors], {}, 0, [-each for each in tensors])


def request(*lengths: int) -> Pass:
    data = tuple(
        Datum(
            tokens=np.zeros(length, dtype=np.int32),
            inputs={
                "target_tokens": np.zeros(length, dtype=np.int64),
                "weights": np.ones(length, dtype=np.float32),
            },
        )
        for length in lengths
    )
    return Pass(run_id="r", seq_id=1, data=data, loss="cross_entropy", options={}, forward_only=False)


class TwoProcesses(SingleProcess):
    """Rank 0 of two; ``theirs`` is what rank 1 sends."""

    size: Any = 2

    def __init__(self, theirs: torch.Tensor) -> None:
        self.theirs = theirs
        self.sizes: list[int] = []

    def gather(self, mine: torch.Tensor, sizes: Sequence[int]) -> list[torch.Tensor]:
        self.sizes = list(sizes)
        return [mine, self.theirs]


def test_one_process_has_all_results() -> None:
    mine = result([-1.0, -2.0])

    assert gather_results(SINGLE_PROCESS, mine, [[example(0, 2)]], LOSS) is mine


def test_results_of_two_processes_are_gathered_by_rank() -> None:
    theirs = torch.tensor([5.0, 0.0, -4.0, -1.0, 4.0, 1.0], dtype=torch.float64)  # loss, work, logprobs, terms
    group = TwoProcesses(theirs)

    gathered = gather_results(
        group, result([-1.0], [-2.0, -3.0]), [[example(0, 1), example(2, 2)], [example(1, 2)]], LOSS
    )

    assert group.sizes == [2 + 1 + 2 * 3, 1 + 1 + 2 * 2]
    assert gathered.losses == [1.0, 5.0, 5.0]
    assert [each.tolist() for each in gathered.logprobs] == [[-1.0], [-2.0, -3.0], [-4.0, -1.0]]
    assert [each.tolist() for each in gathered.terms] == [[1.0], [2.0, 3.0], [4.0, 1.0]]


def test_results_are_in_the_order_of_the_request() -> None:
    outcome = PassOutcome(request(1, 2), LOSS)

    outcome.add([1], result([-2.0, -3.0]))
    outcome.add([0], result([-1.0]))
    finished = outcome.finish()

    assert [each.tolist() for each in finished.logprobs] == [[-1.0], [-2.0, -3.0]]
    assert finished.metrics["loss:sum"] == 6.0
    assert finished.metrics["tokens:sum"] == 3.0


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_a_diverged_model_is_told_with_the_datum(value: float) -> None:
    with pytest.raises(BadRequest, match="datum 3: the model's log-probabilities are not finite"):
        PassOutcome(request(1), LOSS).add([3], result([value]))


def test_a_loss_that_is_not_finite_is_told_with_the_datum() -> None:
    broken = BatchResult([torch.tensor([-1.0])], [math.inf], {}, 0, [torch.tensor([1.0])])

    with pytest.raises(BadRequest, match="datum 3: the loss is not finite"):
        PassOutcome(request(1), LOSS).add([3], broken)
