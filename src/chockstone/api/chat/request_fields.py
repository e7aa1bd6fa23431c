"""Request fields: reads the fields of a JSON object one by one, and refuses those that the server does not know.

Null is the same as absent. Every refusal names the field, so that nothing that a client asks for is ignored.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from chockstone.api.bodies import parse_object
from chockstone.wire.codecs.json_values import (
    HIGHEST,
    describe,
    read_bool,
    read_integer,
    read_number,
    read_object,
    read_text,
)
from chockstone.wire.failures import BadParameter, BadRequest

_SHOWN: Final = 10  # unknown fields in a refusal
_MOST_FIELDS: Final = 1000  # of one object
_DEEPEST: Final = 100  # lists and objects within each other


def parse_fields(body: bytes) -> RequestFields:
    """The fields of a body of JSON. Takes long for a large one."""
    values = parse_object(body)
    _refuse_deep(values)
    json.loads(body, object_pairs_hook=_refuse_twice)  # orjson keeps the last of two, a proxy may read the first
    return RequestFields(values)


class RequestFields:
    def __init__(self, value: object, name: str = "") -> None:
        """``name``: of the object, within the body; empty for the body itself."""
        self._name = name
        with _named(name or "body"):
            self._values = read_object(value, name or "the body")
        if len(self._values) > _MOST_FIELDS:
            raise BadParameter(f"{name or 'the body'} has {len(self._values)} fields, too many to read", param=name)
        self._left = set(self._values)

    def name_of(self, field: str) -> str:
        """How refusals name a field."""
        return f"{self._name}.{field}" if self._name else field

    def take(self, field: str) -> Any:  # Any: plain JSON
        """The value as it is; None: it is absent."""
        self._left.discard(field)
        return self._values.get(field)

    def needed(self, field: str) -> Any:  # Any: plain JSON
        if (value := self.take(field)) is None:
            raise self.refusal(field, "is missing")
        return value

    def text(self, field: str, *, may_be_empty: bool = False) -> str | None:
        value = self.take(field)
        if value is None:
            return None
        with _named(name := self.name_of(field)):
            return read_text(value, name, may_be_empty=may_be_empty)

    def needed_text(self, field: str, *, may_be_empty: bool = False) -> str:
        self.needed(field)
        found = self.text(field, may_be_empty=may_be_empty)
        assert found is not None, "it is there"
        return found

    def word(self, field: str, *words: str) -> str | None:
        """One of these words."""
        value = self.text(field)
        if value is not None and value not in words:
            raise self.refusal(field, f"must be one of {', '.join(map(repr, words))}, not {describe(value)}")
        return value

    def integer(self, field: str, *, low: int = 0, high: int = HIGHEST) -> int | None:
        value = self.take(field)
        if value is None:
            return None
        with _named(name := self.name_of(field)):
            return read_integer(value, name, low=low, high=high)

    def number(self, field: str, *, low: float = -math.inf, high: float = math.inf) -> float | None:
        value = self.take(field)
        if value is None:
            return None
        with _named(name := self.name_of(field)):
            number = read_number(value, name)
        if not low <= number <= high:
            raise self.refusal(field, f"must be between {low:g} and {high:g}, not {describe(value)}")
        return number

    def flag(self, field: str, *, default: bool = False) -> bool:
        value = self.take(field)
        if value is None:
            return default
        with _named(name := self.name_of(field)):
            return read_bool(value, name)

    def items(self, field: str, *, most: int) -> list[Any] | None:  # Any: plain JSON
        value = self.take(field)
        if value is None:
            return None
        if not isinstance(value, list):
            raise self.refusal(field, f"must be a list, not {describe(value)}")
        if len(value) > most:
            raise self.refusal(field, f"has {len(value)} entries; at most {most} are taken")
        return value

    def mapping(self, field: str) -> dict[str, Any] | None:  # Any: plain JSON
        value = self.take(field)
        if value is None:
            return None
        with _named(name := self.name_of(field)):
            return read_object(value, name)

    def inner(self, field: str) -> RequestFields | None:
        """The fields of an object in this one."""
        value = self.take(field)
        return None if value is None else RequestFields(value, self.name_of(field))

    def refuse(self, field: str, why: str, *, neutral: tuple[Any, ...] = ()) -> None:  # Any: plain JSON
        """Refuse a field that is not supported, unless its value is one of those that ask for nothing."""
        value = self.take(field)
        if value is not None and not any(type(value) is type(each) and value == each for each in neutral):
            raise self.refusal(field, why)

    def refusal(self, field: str, why: str) -> BadParameter:
        name = self.name_of(field)
        return BadParameter(f"{name} {why}", param=name)

    def finish(self) -> None:
        """Refuse the fields that were not read. Null fields are let pass."""
        unknown = sorted(field for field in self._left if self._values[field] is not None)
        if unknown:
            names = [self.name_of(field)[:100] for field in unknown]
            more = "" if len(names) <= _SHOWN else f" and {len(names) - _SHOWN} more"
            raise BadParameter(
                f"this server does not know {', '.join(names[:_SHOWN])}{more}; leave out what it does not know",
                param=names[0],
            )


def _refuse_deep(values: dict[str, Any]) -> None:  # Any: plain JSON
    """Encoders and chat templates cannot write values that are nested very deep."""
    for name, value in values.items():
        level, depth = [value], 1
        while level := [inner for each in level if isinstance(each, dict | list) for inner in _values_of(each)]:
            depth += 1
            if depth > _DEEPEST:
                raise BadParameter(f"{name[:100]} is nested deeper than {_DEEPEST} levels", param=name[:100])


def _refuse_twice(pairs: list[tuple[str, Any]]) -> None:  # Any: plain JSON
    if len({name for name, _ in pairs}) < len(pairs):
        [(twice, _)] = Counter(name for name, _ in pairs).most_common(1)
        raise BadParameter(f"{twice[:100]!r} is there twice in one object; send it once", param=twice[:100])


def _values_of(container: dict[str, Any] | list[Any]) -> Iterable[Any]:  # Any: plain JSON
    return container.values() if isinstance(container, dict) else container


@contextmanager
def _named(name: str) -> Iterator[None]:
    try:
        yield
    except BadRequest as error:
        raise BadParameter(str(error), param=name) from None
