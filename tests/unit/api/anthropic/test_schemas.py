from __future__ import annotations

from chockstone.api.anthropic.message_request import read_count_request, read_message_request
from chockstone.api.anthropic.schemas import COUNT_REQUEST, MESSAGE_REQUEST
from chockstone.api.chat.request_fields import RequestFields

TOOL = {"name": "f", "input_schema": {}}
VALUES = {
    "model": "m",
    "messages": [{"role": "user", "content": "Hi"}],
    "system": "Be short.",
    "tools": [TOOL],
    "tool_choice": {"type": "auto"},
    "thinking": {"type": "disabled"},
    "output_config": {"effort": "low"},
    "max_tokens": 1,
    "stop_sequences": ["a"],
    "temperature": 1,
    "top_p": 1,
    "top_k": 1,
    "seed": 1,
    "stream": False,
    "metadata": {},
}


def test_every_field_of_the_document_is_read() -> None:
    assert VALUES.keys() == MESSAGE_REQUEST["properties"].keys()

    read_message_request(RequestFields(VALUES))
    read_count_request(RequestFields({name: VALUES[name] for name in COUNT_REQUEST["properties"]}))
