from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from chockstone.api.chat.request_fields import RequestFields, parse_fields
from chockstone.wire.failures import BadParameter, BadRequest


def refusal(act: Callable[[], Any]) -> BadParameter:
    with pytest.raises(BadParameter) as caught:
        act()
    assert caught.value.param in str(caught.value) or caught.value.param == "body"
    return caught.value


def test_fields_are_read_as_their_types() -> None:
    fields = RequestFields({"a": "text", "b": 3, "c": 0.5, "d": True, "e": [1], "f": {"g": "x"}, "h": "yes", "i": None})

    assert (fields.text("a"), fields.integer("b"), fields.number("c"), fields.flag("d")) == ("text", 3, 0.5, True)
    assert (fields.items("e", most=1), fields.word("h", "yes", "no")) == ([1], "yes")
    inner = fields.inner("f")
    assert inner is not None
    assert inner.needed_text("g") == "x"
    assert (fields.text("i"), fields.text("z"), fields.flag("y", default=True)) == (None, None, True)
    fields.finish()


@pytest.mark.parametrize(
    "read",
    [
        lambda fields: fields.text("a"),
        lambda fields: fields.integer("a", low=5),
        lambda fields: fields.number("a", high=2),
        lambda fields: fields.flag("a"),
        lambda fields: fields.items("a", most=1),
        lambda fields: fields.mapping("a"),
        lambda fields: fields.inner("a"),
        lambda fields: fields.word("a", "b"),
        lambda fields: fields.refuse("a", "is not supported", neutral=(3.0, None)),
    ],
)
def test_a_wrong_value_is_refused_by_name(read: Callable[[RequestFields], Any]) -> None:
    assert refusal(lambda: read(RequestFields({"a": 3}))).param == "a"
    assert refusal(lambda: read(RequestFields({"a": 3}, "messages[2]"))).param == "messages[2].a"


def test_a_missing_field_is_refused_by_name() -> None:
    assert refusal(lambda: RequestFields({"a": None}).needed_text("a")).param == "a"


def test_a_body_that_is_no_object_is_refused() -> None:
    assert refusal(lambda: RequestFields([])).param == "body"


def test_fields_that_were_not_read_are_refused_together() -> None:
    fields = RequestFields({"a": 1, "frequency": 2, "beta": 3, "empty": None})
    fields.integer("a")

    error = refusal(fields.finish)
    assert error.param == "beta"
    assert "beta, frequency;" in str(error)


def test_a_refusal_of_very_many_unknown_fields_is_short() -> None:
    assert len(str(refusal(RequestFields({"x" * 1000 + str(n): 1 for n in range(1000)}).finish))) < 2000
    with pytest.raises(BadParameter, match="10000 fields, too many"):
        RequestFields({str(n): 1 for n in range(10_000)})


def test_a_value_that_asks_for_nothing_is_let_pass() -> None:
    fields = RequestFields({"penalty": 0, "bias": {}, "echo": False})
    fields.refuse("penalty", "is not supported", neutral=(0, 0.0))
    fields.refuse("bias", "is not supported", neutral=({},))
    fields.refuse("echo", "is not supported", neutral=(False,))
    fields.finish()


def test_a_body_of_json_is_parsed() -> None:
    assert parse_fields(b'{"a": [[{"b": "c"}]]}').take("a") == [[{"b": "c"}]]
    with pytest.raises(BadRequest, match="not JSON"):
        parse_fields(b"{")


@pytest.mark.parametrize(("begin", "end"), [(b"[", b"]"), (b'{"b":', b"}")])
def test_values_that_are_nested_very_deep_are_refused(begin: bytes, end: bytes) -> None:
    def body(depth: int) -> bytes:
        return b'{"a":' + begin * depth + b"1" + end * depth + b"}"

    parse_fields(body(90))
    assert refusal(lambda: parse_fields(body(500))).param == "a"


@pytest.mark.parametrize(
    ("body", "param"),
    [(b'{"model": "a", "model": "a"}', "model"), (b'{"a": [{"b": 1, "\\u0062": null}]}', "b")],
)
def test_a_field_that_is_there_twice_is_refused(body: bytes, param: str) -> None:
    assert refusal(lambda: parse_fields(body)).param == param
