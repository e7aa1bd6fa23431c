from __future__ import annotations

import json
from typing import Any

import pytest

from chockstone.wire.codecs import constraints
from chockstone.wire.codecs.constraints import Constraint, decode_constraint
from chockstone.wire.codecs.sample_request import decode_sample, peek_sample
from chockstone.wire.failures import BadRequest

SCHEMA = {"type": "object", "properties": {"é": {"type": "integer"}}}


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(levels):
        schema = {"a": schema}
    return schema


def test_a_schema_is_kept_as_text_with_what_surrounds_it() -> None:
    read = decode_constraint({"json_schema": SCHEMA, "prefix": "<tool_call>\n", "suffix": None}, "constraint")

    assert read is not None and json.loads(read.schema) == SCHEMA
    assert (read.prefix, read.suffix) == ("<tool_call>\n", "")


def test_any_object_is_a_schema_too() -> None:
    assert decode_constraint({"json_object": True}, "constraint") == Constraint('{"type":"object"}')


def test_none_is_no_constraint() -> None:
    assert decode_constraint(None, "constraint") is None


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ([], "constraint must be an object"),
        ({}, "either json_object or json_schema"),
        ({"json_object": True, "json_schema": {}}, "either json_object or json_schema"),
        ({"json_object": False}, "json_object must be true"),
        ({"json_schema": True}, "json_schema must be an object"),
        ({"json_schema": {}, "regex": "a"}, "unknown field 'regex'"),
        ({"json_object": True, "prefix": 3}, "prefix must be a string"),
        ({"json_object": True, "suffix": "x" * 1001}, "suffix has 1001 characters"),
        ({"json_schema": {"enum": ["x" * 1000] * 200}}, "characters, more than"),
        ({"json_schema": {"enum": list(range(10_000))}}, "more than 10000 values"),
        ({"json_schema": {"properties": {f"p{i}": {} for i in range(1001)}}}, "1001 properties"),
        ({"json_schema": nested(64)}, "64 levels deep"),
        ({"json_schema": nested(100_000)}, "64 levels deep"),
    ],
)
def test_others_are_refused(value: object, complaint: str) -> None:
    with pytest.raises(BadRequest, match=complaint):
        decode_constraint(value, "constraint")


def test_a_request_is_refused_before_it_is_recorded() -> None:
    body = {
        "base_model": "tiny",
        "prompt": {"chunks": [{"type": "encoded_text", "tokens": [1]}]},
        "constraint": {"json_schema": nested(constraints.MAX_SCHEMA_DEPTH)},
    }

    for read in (peek_sample, decode_sample):
        with pytest.raises(BadRequest, match="levels deep"):
            read(body)


def test_a_request_has_its_constraint() -> None:
    body = {
        "base_model": "tiny",
        "prompt": {"chunks": [{"type": "encoded_text", "tokens": [1]}]},
        "constraint": {"json_object": True},
    }

    assert decode_sample(body).constraint == Constraint('{"type":"object"}')
