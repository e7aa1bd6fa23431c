from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from chockstone.engine.conversations.answers import (
    KeptConversation,
    check_reward,
    is_conversation_id,
    new_conversation_id,
    order_of,
    time_of,
)
from chockstone.wire.failures import BadRequest
from support.engine.making import NOW
from support.engine.stored_answers import stored_answer, stored_choice


@pytest.mark.parametrize("prefix", ["chatcmpl-", "cmpl-", "resp_", "msg_"])
def test_an_id_has_the_prefix_of_its_api_and_the_time(prefix: str) -> None:
    made = new_conversation_id(prefix, NOW)

    assert made.startswith(prefix)
    assert is_conversation_id(made)
    assert abs(time_of(made) - NOW) < timedelta(milliseconds=1)


def test_ids_of_all_prefixes_sort_by_time() -> None:
    ids = [new_conversation_id(prefix, NOW + timedelta(seconds=at)) for at, prefix in enumerate(["resp_", "cmpl-"])]

    newest_first = ids[::-1]
    assert sorted(newest_first, key=order_of) == ids


@pytest.mark.parametrize(
    "text", ["", "chatcmpl-", "../" + "a" * 32, "chatcmpl-" + "g" * 32, "chatcmpl-" + "a" * 33, "a-" + "a" * 32 + "\n"]
)
def test_other_texts_are_no_ids(text: str) -> None:
    assert not is_conversation_id(text)


@pytest.mark.parametrize("reward", [float("nan"), float("inf"), -float("inf"), 1e7, -1e300])
def test_a_reward_that_no_loss_can_use_is_refused(reward: float) -> None:
    with pytest.raises(BadRequest, match="is not a number between"):
        check_reward(reward)


def test_a_reward_may_be_any_other_number() -> None:
    assert [check_reward(reward) for reward in (0, -1e6, 0.25)] == [0.0, -1e6, 0.25]


def kept(choices: int) -> KeptConversation:
    return KeptConversation(stored_answer(choices=[stored_choice()] * choices), NOW, {}, 4096)


def test_the_only_choice_need_not_be_named() -> None:
    assert kept(1).choose(None) == 0
    assert kept(3).choose(2) == 2


@pytest.mark.parametrize(("choices", "choice"), [(3, None), (1, 1), (3, -1), (0, 0)])
def test_a_choice_that_is_not_there_is_refused(choices: int, choice: Any) -> None:
    with pytest.raises(BadRequest, match="chatcmpl-"):
        kept(choices).choose(choice)
