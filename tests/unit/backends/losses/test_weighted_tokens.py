from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from chockstone.backends.losses.weighted_tokens import weighted_tokens
from chockstone.wire.codecs.passes import Datum


def datum(count: int = 3, **inputs: list[float]) -> Datum:
    arrays: dict[str, Any] = {name: np.array(values, np.float32) for name, values in inputs.items()}
    return Datum(np.arange(count, dtype=np.int32), {"target_tokens": np.zeros(count, np.int64), **arrays})


def test_a_cross_entropy_is_divided_by_the_sum_of_its_weights() -> None:
    assert weighted_tokens([datum(weights=[0, 1, 1]), datum(2, weights=[0.5, 0])], "cross_entropy") == 2.5


def test_a_token_without_a_weight_counts_whole() -> None:
    assert weighted_tokens([datum(3), datum(2, weights=[0.5, 0])], "cross_entropy") == 3.5
    assert weighted_tokens([datum(3), datum(4)], "cross_entropy") == 7.0


def test_negative_weights_are_no_weights() -> None:
    """The SDK sends gradients as weights in the second pass of a loss that the client computes."""
    assert weighted_tokens([datum(weights=[0, -1, 1])], "cross_entropy") is None


@pytest.mark.parametrize("loss", ["importance_sampling", "ppo", "cispo", "dro", "gspo"])
def test_a_policy_loss_is_divided_by_the_tokens_with_an_advantage(loss: str) -> None:
    assert weighted_tokens([datum(advantages=[0, -2, 1]), datum(2, advantages=[0.5, 0])], loss) == 3.0


def test_a_custom_loss_has_no_mean_per_token() -> None:
    assert weighted_tokens([datum(advantages=[0, -2, 1])], "custom") is None
    assert weighted_tokens([datum(weights=[0, 2, 1])], "custom") is None
