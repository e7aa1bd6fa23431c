from __future__ import annotations

import numpy as np
import pytest
import torch

from chockstone.backends.training.examples import Example
from chockstone.backends.training.run import TrainedRun
from chockstone.wire.codecs.passes import Array, Datum
from chockstone.wire.failures import BadRequest
from support.tiny_models import VOCABULARY, apply, datum, lora_run, tiny_base

F32, I64 = np.float32, np.int64


@pytest.fixture(scope="module")
def run() -> TrainedRun:
    return lora_run(tiny_base())


def with_inputs(positions: int = 3, **inputs: Array) -> Datum:
    return Datum(np.arange(positions, dtype=np.int32), {"target_tokens": np.arange(positions), **inputs})


def policy(**changes: Array) -> Datum:
    ones = np.ones(3, F32)
    return with_inputs(**{"logprobs": -ones, "advantages": ones, "sequence_ratio_mask": ones, **changes})


@pytest.mark.parametrize(
    ("bad", "loss", "message"),
    [
        (Datum(np.zeros(0, np.int32), {"target_tokens": np.zeros(0, I64)}), "cross_entropy", "input is empty"),
        (datum(65), "cross_entropy", "65 tokens, but the model's context ends at 64"),
        (
            Datum(np.array([1, 2, VOCABULARY], np.int32), {"target_tokens": np.zeros(3, I64)}),
            "cross_entropy",
            "token 97 at position 2 is outside the vocabulary of 97",
        ),
        (
            Datum(np.array([-1], np.int32), {"target_tokens": np.zeros(1, I64)}),
            "cross_entropy",
            "token -1 at position 0",
        ),
        (
            Datum(np.zeros(2, np.int32), {"target_tokens": np.array([[0, 1], [2, 200]])}),
            "cross_entropy",
            r"target 200 at position \[1, 1\]",
        ),
        (Datum(np.zeros(2, np.int32), {}), "cross_entropy", "'target_tokens' is missing"),
        (
            Datum(np.zeros(2, np.int32), {"target_tokens": np.zeros(2, F32)}),
            "cross_entropy",
            "float32; send it as int64",
        ),
        (
            Datum(np.zeros(2, np.int32), {"target_tokens": np.zeros(3, I64)}),
            "cross_entropy",
            r"shape \[3\], .* 2 positions",
        ),
        (Datum(np.zeros(2, np.int32), {"target_tokens": np.zeros((2, 0), I64)}), "cross_entropy", r"shape \[2, 0\]"),
        (with_inputs(mask=np.ones(3, F32)), "cross_entropy", "takes no input 'mask'; it takes target_tokens, weights"),
        (
            with_inputs(weights=np.ones(4, F32)),
            "cross_entropy",
            r"'weights' has shape \[4\], but 'target_tokens' has \[3\]",
        ),
        (with_inputs(weights=np.ones(3, I64)), "cross_entropy", "'weights' is int64; send it as float32"),
        (
            with_inputs(weights=np.array([1, np.nan, 1], F32)),
            "cross_entropy",
            "'weights' has values that are not finite",
        ),
        (with_inputs(logprobs=np.ones(3, F32)), "ppo", "'advantages' is missing, which the loss 'ppo' needs"),
        (policy(sequence_ratio_mask=np.zeros(3, F32)), "gspo", "sequence_ratio_mask is zero everywhere"),
        (policy(clip_low_threshold=np.full(3, 9, F32)), "gspo", "clip_low_threshold is above .* at position 0"),
    ],
)
def test_a_bad_datum_is_refused_with_its_index(run: TrainedRun, bad: Datum, loss: str, message: str) -> None:
    good = {"cross_entropy": with_inputs(), "ppo": with_inputs(logprobs=np.ones(3, F32), advantages=np.ones(3, F32))}

    with pytest.raises(BadRequest, match=f"datum 1: .*{message}"):
        apply(run, good.get(loss, policy()), bad, loss=loss)

    assert run.state()["gradient"] is None


def test_a_request_without_datums_is_refused(run: TrainedRun) -> None:
    with pytest.raises(BadRequest, match="no datums"):
        apply(run)


def test_a_ratio_that_overflows_is_refused_with_its_datum(run: TrainedRun) -> None:
    far = with_inputs(logprobs=np.full(3, -1e4, F32), advantages=np.ones(3, F32))

    with pytest.raises(BadRequest, match="datum 0: the loss is not finite"):
        apply(run, far, loss="importance_sampling")

    assert run.state()["gradient"] is None


def test_a_gradient_that_overflows_is_refused_and_leaves_nothing(run: TrainedRun) -> None:
    heavy = with_inputs(weights=np.array([3e38, -3e38, 0], F32) / 8)

    with pytest.raises(BadRequest, match="gradient is not finite"):
        apply(run, heavy)

    assert run.state()["gradient"] is None


def test_positions_with_other_recorded_experts_are_other_content() -> None:
    tokens = torch.arange(4)
    routing = torch.tensor([[[0, 1], [2, 3], [1, 0]], [[5, 1], [2, 4], [1, 0]]])  # of the first three positions
    other = routing.clone()
    other[1, 2] = torch.tensor([0, 1])
    contents = [
        Example(0, tokens, tokens[:, None], (4,), {}, routing_LNK=each).content for each in (None, routing, other)
    ]

    free, first, second = (content[:, -1].tolist() for content in contents)

    assert free == [0, 0, 0, 0]
    assert [value != 0 for value in first] == [True, True, True, False]
    assert [one == two for one, two in zip(first, second, strict=True)] == [True, True, False, True]
