"""Constraints: what the text of a sample must be, as a sample request names it.

The API checks sizes and shapes here, before a request is recorded. Whether a schema can be compiled, only the worker
knows.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

from chockstone.wire.codecs.json_values import describe, read_object, read_text
from chockstone.wire.failures import BadRequest

MAX_SCHEMA_CHARACTERS: Final = 128 << 10  # of its JSON, without spaces
MAX_SCHEMA_VALUES: Final = 10_000  # objects, lists, texts and numbers in it
MAX_SCHEMA_DEPTH: Final = 64
MAX_PROPERTIES: Final = 1000  # of one object: the time to compile them grows with their square
MAX_FIXED_CHARACTERS: Final = 1000
_KNOWN: Final = {"json_object", "json_schema", "prefix", "suffix"}
_ANY_OBJECT: Final = '{"type":"object"}'


@dataclass(frozen=True, slots=True)
class Constraint:
    """The text is ``prefix``, then JSON that matches ``schema``, then ``suffix``."""

    schema: str  # JSON text of an object
    prefix: str = ""
    suffix: str = ""


def decode_constraint(value: object, name: str) -> Constraint | None:
    """``{"json_object": true}`` or ``{"json_schema": {...}}``, perhaps with ``prefix`` and ``suffix``; None is none.

    Raises BadRequest.
    """
    if value is None:
        return None
    fields = read_object(value, name)
    if unknown := sorted(set(fields) - _KNOWN):
        raise BadRequest(f"{name} has the unknown field {unknown[0]!r:.80}. It has {', '.join(sorted(_KNOWN))}.")
    schema = fields.get("json_schema")
    if (schema is None) == (fields.get("json_object") is None):
        raise BadRequest(f"{name} must have either json_object or json_schema.")
    if schema is None and fields["json_object"] is not True:
        raise BadRequest(f"{name}.json_object must be true, not {describe(fields['json_object'])}.")
    return Constraint(
        _ANY_OBJECT if schema is None else _encode_schema(schema, f"{name}.json_schema"),
        _read_fixed(fields, "prefix", name),
        _read_fixed(fields, "suffix", name),
    )


def _encode_schema(schema: object, name: str) -> str:
    _check_size(read_object(schema, name), name)
    text = json.dumps(schema, ensure_ascii=False, separators=(",", ":"))
    if len(text) > MAX_SCHEMA_CHARACTERS:
        raise BadRequest(f"{name} has {len(text)} characters, more than {MAX_SCHEMA_CHARACTERS}. Make it smaller.")
    return text


def _check_size(schema: dict[str, Any], name: str) -> None:
    """Does not recurse: a schema may be as deep as its sender likes."""
    level: list[object] = [schema]
    values, depth = 0, 0
    while level:
        values, depth = values + len(level), depth + 1
        if depth > MAX_SCHEMA_DEPTH:
            raise BadRequest(f"{name} is nested more than {MAX_SCHEMA_DEPTH} levels deep. Make it flatter.")
        if values > MAX_SCHEMA_VALUES:
            raise BadRequest(f"{name} has more than {MAX_SCHEMA_VALUES} values. Make it smaller.")
        below: list[object] = []
        for value in level:
            if isinstance(value, dict):
                if len(value) > MAX_PROPERTIES:
                    raise BadRequest(
                        f"{name} has an object of {len(value)} properties, more than {MAX_PROPERTIES}. Make it smaller."
                    )
                below.extend(value.values())
            elif isinstance(value, list):
                below.extend(value)
        level = below


def _read_fixed(fields: dict[str, Any], key: str, name: str) -> str:
    text = read_text("" if fields.get(key) is None else fields[key], f"{name}.{key}", may_be_empty=True)
    if len(text) > MAX_FIXED_CHARACTERS:
        raise BadRequest(f"{name}.{key} has {len(text)} characters, more than {MAX_FIXED_CHARACTERS}.")
    return text
