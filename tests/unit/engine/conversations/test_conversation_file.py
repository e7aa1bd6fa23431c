from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

from chockstone.engine.conversations.answers import Correction, Feedback
from chockstone.engine.conversations.conversation_file import (
    ConversationDamaged,
    ConversationTooNew,
    _pack,
    decode,
    encode,
)
from support.engine.making import NOW
from support.engine.stored_answers import stored_answer, stored_choice

GIVEN = {0: Feedback(0.5, Correction((1, 2), "no")), 1: Feedback()}


def read(content: bytes, **facts: Any) -> Any:
    answer = stored_answer()
    return decode(content, **({"owner": "ada", "conversation_id": answer.conversation_id} | facts))


def test_a_conversation_is_read_as_it_was_written() -> None:
    answer = stored_answer(choices=(stored_choice(), stored_choice((3,))), metadata={"a": "ü"}, tools=({"type": "x"},))

    found, kept_at, feedback = decode(
        encode(answer, GIVEN, kept_at=NOW), owner="ada", conversation_id=answer.conversation_id
    )

    assert found == stored_answer(
        conversation_id=answer.conversation_id,
        choices=answer.choices,
        metadata=answer.metadata,
        tools=answer.tools,
        messages=tuple(answer.messages),
    )
    assert (kept_at, feedback) == (NOW, GIVEN)


def test_every_bit_of_a_log_probability_is_kept() -> None:
    bits = np.random.default_rng(0).integers(0, 2**32, 5000, dtype=np.uint32)
    numbers = bits.view(np.float32)
    numbers = np.concatenate([numbers[~np.isnan(numbers)], np.array([-np.inf, -0.0, 1e-45], np.float32)])
    answer = stored_answer(choices=[stored_choice((1,) * len(numbers), tuple(numbers.tolist()))])

    found, _, _ = decode(encode(answer, {}, kept_at=NOW), owner="ada", conversation_id=answer.conversation_id)

    assert np.array(found.choices[0].logprobs, np.float32).tobytes() == numbers.tobytes()


def test_damage_is_noticed_wherever_it_is() -> None:
    answer = stored_answer()
    content = encode(answer, GIVEN, kept_at=NOW)

    for at in range(len(content)):
        damaged = bytearray(content)
        damaged[at] ^= 1
        with pytest.raises(ConversationDamaged):
            decode(bytes(damaged), owner="ada", conversation_id=answer.conversation_id)
    for length in range(len(content)):
        with pytest.raises(ConversationDamaged):
            decode(content[:length], owner="ada", conversation_id=answer.conversation_id)


@pytest.mark.parametrize(
    "content",
    [
        b"\n\n",
        os.urandom(999),
        b"null\n" * 2,
        _pack({}) * 2,
        _pack({"conversation": 1}) * 2,
        _pack({"conversation": 1, "owner": "ada", "kept_at": "x"}) + _pack({}),
    ],
)
def test_rubbish_is_no_conversation(content: bytes) -> None:
    with pytest.raises(ConversationDamaged):
        read(content)


def test_a_file_of_another_owner_is_not_read() -> None:
    answer = stored_answer()

    with pytest.raises(ConversationDamaged, match="another conversation"):
        decode(encode(answer, {}, kept_at=NOW), owner="eve", conversation_id=answer.conversation_id)


def test_a_file_of_a_later_version_is_left_alone() -> None:
    with pytest.raises(ConversationTooNew, match="version 2"):
        read(_pack({"conversation": 2}) + _pack({}))


@pytest.mark.parametrize(
    "facts", [{"prompt_tokens": (2**31,)}, {"messages": [{"a": object()}]}, {"metadata": {"a": "\ud800"}}]
)
def test_an_answer_that_cannot_be_written_is_refused(facts: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"token is not between|what JSON cannot"):
        encode(stored_answer(**facts), {}, kept_at=NOW)


@pytest.mark.parametrize("number", [2**70, -(2**70), 2**63, 10**18, -(10**19)])
def test_integers_are_kept_as_they_are_however_long(number: int) -> None:
    call = {"function": {"name": "add", "arguments": {"a": number, "b": [number], "c": f"1:{number}"}}}
    answer = stored_answer(messages=({"role": "assistant", "tool_calls": [call]},))

    found, _, _ = decode(encode(answer, {}, kept_at=NOW), owner="ada", conversation_id=answer.conversation_id)

    assert found.messages == answer.messages
