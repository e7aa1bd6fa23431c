from __future__ import annotations

from chockstone.api.chat.orders import Conversation, GenerationParameters
from support.chat import WEATHER


def test_a_choice_of_no_tool_offers_none() -> None:
    assert Conversation(messages=[], tools=[WEATHER]).offered_tools == [WEATHER]
    assert Conversation(messages=[], tools=[WEATHER], tool_choice="none").offered_tools == ()


def test_parameters_are_those_of_a_sample_request() -> None:
    assert GenerationParameters().to_json() == {"temperature": 1.0, "top_p": 1.0, "top_k": -1}
    assert GenerationParameters(max_tokens=3, seed=4, stop=("a",), temperature=0.5).to_json() == {
        "max_tokens": 3,
        "seed": 4,
        "stop": ["a"],
        "temperature": 0.5,
        "top_p": 1.0,
        "top_k": -1,
    }
