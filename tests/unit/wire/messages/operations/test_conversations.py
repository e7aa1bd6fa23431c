from __future__ import annotations

from typing import Any

import pytest

from chockstone.wire.messages.operations.conversations import CorrectionRequest, RewardRequest
from support.wire.sdk import assert_refused


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, "send either text or tokens."),
        ({"text": "no", "tokens": [1]}, "send either text or tokens."),
        ({"text": ""}, "text must have at least 1 character"),
        ({"tokens": []}, "tokens must have at least 1 item"),
        ({"tokens": [-1]}, "greater than or equal to 0"),
        ({"text": "no", "choice": -1}, "choice must be greater than or equal to 0"),
    ],
)
def test_what_is_wrong_with_a_correction_is_said(body: Any, words: str) -> None:
    assert_refused(CorrectionRequest, body, words)


def test_a_reward_may_be_removed_and_must_be_named() -> None:
    assert RewardRequest.model_validate({"reward": None}).reward is None

    assert_refused(RewardRequest, {}, "reward is missing.")
