from __future__ import annotations

import pytest

from chockstone.api.chat.orders import GenerationParameters
from chockstone.api.chat.request_fields import RequestFields
from chockstone.api.openai.sampling_fields import read_metadata, read_parameters, read_stop, read_stream
from chockstone.wire.failures import BadParameter


def test_parameters_are_read() -> None:
    sent = {"temperature": 0, "top_p": 0.5, "top_k": 3, "seed": -4, "stop": "x"}
    read = read_parameters(RequestFields(sent), max_tokens=5, choices=2, alternatives=1)

    assert read == GenerationParameters(
        max_tokens=5, temperature=0, top_p=0.5, top_k=3, seed=-4, stop=("x",), choices=2, alternatives=1
    )
    assert read_parameters(RequestFields({}), max_tokens=None) == GenerationParameters()
    assert read_parameters(RequestFields({"top_k": 0}), max_tokens=None).top_k == -1


def test_stops_are_one_text_or_several() -> None:
    assert read_stop(RequestFields({"stop": ["a", "b"]})) == ("a", "b")
    assert read_stop(RequestFields({"stop": []})) == ()
    for wrong in (["a"] * 1000, "a" * 10_001):
        with pytest.raises(BadParameter, match="at most 256 texts, each of at most 10000 characters"):
            read_stop(RequestFields({"stop": wrong}))


def test_the_usage_of_a_stream_is_asked_for() -> None:
    assert read_stream(RequestFields({})) == (False, False)
    assert read_stream(RequestFields({"stream": True, "stream_options": {}})) == (True, False)
    assert read_stream(RequestFields({"stream": True, "stream_options": {"include_usage": True}})) == (True, True)
    with pytest.raises(BadParameter, match=r"stream_options\.usage"):
        read_stream(RequestFields({"stream": True, "stream_options": {"usage": True}}))


def test_metadata_are_a_few_texts() -> None:
    assert read_metadata(RequestFields({"metadata": {"a": "b"}})) == {"a": "b"}
    for wrong in ({"a": 1}, {str(number): "" for number in range(17)}, {"a": "x" * 513}, {"x" * 513: "a"}, []):
        with pytest.raises(BadParameter):
            read_metadata(RequestFields({"metadata": wrong}))
