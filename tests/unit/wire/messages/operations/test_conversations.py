from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from chockstone.wire.messages.operations.conversations import CorrectionRequest, RewardRequest


def test_a_reward_may_be_any_finite_number_or_none() -> None:
    assert [RewardRequest.model_validate({"reward": value}).reward for value in (1, -0.5, None)] == [1.0, -0.5, None]


@pytest.mark.parametrize("body", [{}, {"reward": float("nan")}, {"reward": "1"}, {"reward": 1, "choice": -1}])
def test_other_rewards_are_refused(body: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        RewardRequest.model_validate(body)


@pytest.mark.parametrize("body", [{}, {"text": "a", "tokens": [1]}, {"text": ""}, {"tokens": []}, {"tokens": [-1]}])
def test_a_correction_is_either_text_or_tokens(body: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        CorrectionRequest.model_validate(body)
    assert CorrectionRequest.model_validate({"tokens": [1, 2]}).tokens == [1, 2]
