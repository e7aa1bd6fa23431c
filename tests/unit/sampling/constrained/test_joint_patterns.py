from __future__ import annotations

import time
from string import ascii_lowercase
from typing import Any

import pytest

from chockstone.sampling.constrained.joint_patterns import MAX_JOINT_PATTERNS, count_joint_patterns

Schema = dict[str, Any]


def has(letter: str) -> Schema:
    return {"type": "string", "pattern": f".*{letter}.*"}


TEXTS = [has(letter) for letter in ascii_lowercase]
NAMES = {letter: has(letter) for letter in ascii_lowercase}


def chained(combiner: str) -> Schema:
    found: Schema = {}
    for text in TEXTS:
        found = {**text, combiner: [found]}
    return found


REFERRED = {str(place): {**text, "$ref": f"#/$defs/{place + 1}"} for place, text in enumerate(TEXTS)} | {"26": {}}
GROWING = {  # at each level of x, one pattern more meets the others
    "n": {"allOf": [{"properties": {"x": {"$ref": "#/$defs/n"}}}, {"properties": {"x": {"$ref": "#/$defs/0"}}}]},
    **{str(place): {**text, "properties": {"x": {"$ref": f"#/$defs/{place + 1}"}}} for place, text in enumerate(TEXTS)},
    "26": {},
}


@pytest.mark.parametrize(
    "schema",
    [
        {"allOf": TEXTS},
        {"type": "object", "properties": {"a": {"items": {"allOf": TEXTS}}}},
        {"allOf": [{"allOf": TEXTS[:13]}, {"allOf": TEXTS[13:]}]},
        {"allOf": [{"properties": {"x": text}} for text in TEXTS]},
        chained("allOf"),
        chained("anyOf"),
        chained("oneOf"),
        {"$ref": "#/$defs/0", "$defs": REFERRED},
        {"$ref": "#/$defs/n", "$defs": GROWING},
        {"allOf": [{"$ref": f"#/definitions/{letter}"} for letter in NAMES], "definitions": NAMES},
        {"allOf": [{"$ref": f"http://there/{letter}"} for letter in NAMES], "$defs": NAMES},
        {
            "allOf": [{"$ref": f"#{letter}"} for letter in NAMES],
            "$defs": {k: {**v, "$anchor": k} for k, v in NAMES.items()},
        },
    ],
)
def test_patterns_that_may_meet_are_counted(schema: Schema) -> None:
    assert count_joint_patterns(schema) == len(TEXTS)


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": "object", "properties": NAMES}, 1),
        ({"anyOf": TEXTS}, 1),
        ({"anyOf": [{"$ref": f"#/$defs/{letter}"} for letter in NAMES], "$defs": NAMES, "title": "x"}, 1),
        ({"allOf": [{"properties": NAMES}, {"properties": NAMES}]}, 2),
        ({"properties": NAMES, "patternProperties": NAMES, "additionalProperties": has("z")}, 2),
        ({"properties": {**NAMES, "more": {"$ref": "#"}}}, 1),
        ({"const": {"allOf": TEXTS}, "examples": TEXTS}, 0),
        ({"anyOf": TEXTS, "pattern": "x", "format": "date"}, 3),
        ({"properties": {"pattern": has("x"), "format": has("y"), **NAMES}}, 1),
    ],
)
def test_patterns_of_different_texts_do_not_count_together(schema: Schema, expected: int) -> None:
    assert count_joint_patterns(schema) == expected


def test_few_patterns_are_not_looked_at() -> None:
    assert count_joint_patterns({"properties": dict(list(NAMES.items())[:MAX_JOINT_PATTERNS])}) == MAX_JOINT_PATTERNS


def test_counting_takes_little_time_for_any_schema() -> None:
    doubled = {
        str(place): {"anyOf": [{"$ref": f"#/$defs/{place + 1}"}] * 9, "x": {"$ref": "#"}} for place in range(900)
    }
    schema = {"$ref": "#/$defs/0", "$defs": {**doubled, "900": {}, "names": {"properties": NAMES}}}

    began = time.process_time()
    found = count_joint_patterns(schema)

    assert found == len(TEXTS), "too much to look at counts all"
    assert time.process_time() - began < 2
