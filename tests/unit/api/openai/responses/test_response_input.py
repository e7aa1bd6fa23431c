from __future__ import annotations

from chockstone.api.chat.request_fields import RequestFields
from chockstone.api.openai.responses.response_input import read_input


def call_of(call_id: str) -> dict[str, str]:
    return {"type": "function_call", "call_id": call_id, "name": "weather", "arguments": "{}", "status": "completed"}


def test_a_text_is_the_message_of_the_user() -> None:
    assert read_input(RequestFields({"input": "Hi"}), "Be brief.") == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
    ]


def test_calls_of_one_turn_are_one_message() -> None:
    output = {"type": "function_call_output", "call_id": "a", "output": "sunny"}
    messages = read_input(RequestFields({"input": [call_of("a"), call_of("b"), output]}), None)

    assert [message["role"] for message in messages] == ["assistant", "tool"]
    assert [call["id"] for call in messages[0]["tool_calls"]] == ["a", "b"]
