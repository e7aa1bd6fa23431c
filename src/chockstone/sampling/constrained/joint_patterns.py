"""Joint patterns: how many patterns and formats a schema asks of one text.

llguidance intersects them before its limits count anything. Time and memory of that grow more than twofold with each
of them: 20 take half a minute and gigabytes. What is counted here is never less than what is intersected.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final
from urllib.parse import unquote

Json = Any  # plain JSON
MAX_JOINT_PATTERNS: Final = 12
_TEXTUAL: Final = ("pattern", "format")
_REFERENCES: Final = frozenset({"$ref", "$dynamicRef", "$recursiveRef"})
_ALL_OF: Final = frozenset({"allOf", "if", "then", "else", "not", "dependentSchemas", "propertyNames"})
_ANY_OF: Final = frozenset({"anyOf", "oneOf"})
_VALUES: Final = frozenset({"const", "default", "enum", "examples", *_TEXTUAL})  # no schemas are in these
_DEFINITIONS: Final = frozenset({"$defs", "definitions"})  # schemas that apply where they are referred to
_NAMED: Final = ("properties", "patternProperties")
_MOST_STEPS: Final = 100_000


def count_joint_patterns(schema: Mapping[str, Json]) -> int:
    """At least as many as any text must match. All that are in the schema, if it cannot be told which meet."""
    total = len(set(_all_patterns(schema)))
    if total <= MAX_JOINT_PATTERNS:
        return total
    try:
        return min(total, _Count(schema).of(schema))
    except (_Unclear, RecursionError):
        return total


class _Unclear(Exception):
    """A schema is part of itself where schemas meet, a reference leads nowhere, or there is too much to look at."""


class _Count:
    def __init__(self, root: Mapping[str, Json]) -> None:
        self._root = root
        self._open: dict[str, int] = {}  # references that are being followed, with the meetings before each
        self._known: dict[str, int] = {}
        self._meetings = 0  # of schemas, around the present one
        self._steps = 0
        self._cycles = 0  # references to what is being followed, so far

    def of(self, node: Json) -> int:
        """At the text itself, or at any one below: an upper bound for what meets there."""
        self._steps += 1
        if self._steps > _MOST_STEPS:
            raise _Unclear
        if isinstance(node, list):
            return max(map(self.of, node), default=0)
        if not isinstance(node, dict):
            return 0
        is_meeting = _is_meeting(node)
        self._meetings += is_meeting
        own = sum(name in node for name in _TEXTUAL)
        named = sum(self._largest(node.get(name)) for name in _NAMED)
        below, beside = max(own, named), 0
        for keyword, value in node.items():
            if keyword in _REFERENCES:
                beside += self._referred(value)
            elif keyword in _ALL_OF:
                beside += sum(map(self.of, value if isinstance(value, list) else [value, *_values(value)]))
            elif keyword in _ANY_OF:
                beside += self.of(value)
            elif keyword not in _VALUES and keyword not in _DEFINITIONS and keyword not in _NAMED:
                below = max(below, self.of(value))
        self._meetings -= is_meeting
        return below + beside

    def _largest(self, schemas: Json) -> int:
        return max(map(self.of, _values(schemas)), default=0)

    def _referred(self, reference: Json) -> int:
        if not isinstance(reference, str) or not reference.startswith("#"):
            raise _Unclear
        if reference in self._known:
            return self._known[reference]
        if reference in self._open:
            if self._meetings > self._open[reference]:
                raise _Unclear
            self._cycles += 1
            return 0  # the same schema further below, where nothing else meets it
        self._open[reference] = self._meetings
        cycles = self._cycles
        found = self.of(_resolved(self._root, reference))
        del self._open[reference]
        if self._cycles == cycles:  # else it holds only on this way
            self._known[reference] = found
        return found


def _is_meeting(node: Mapping[str, Json]) -> bool:
    """Whether parts of the schema apply to the same text beside each other."""
    entries = node.get("allOf")
    parts = max(0, len(entries) - 1) if isinstance(entries, list) else 0
    for keyword, value in node.items():
        is_part = keyword in _TEXTUAL or isinstance(value, dict | list) or keyword in _REFERENCES
        parts += is_part and keyword not in _DEFINITIONS
    return parts > 1


def _all_patterns(root: Json) -> Iterable[tuple[str, str]]:
    """Of any part, schema or not."""
    left = [root]
    while left:
        node = left.pop()
        if isinstance(node, dict):
            yield from ((name, str(node[name])) for name in _TEXTUAL if name in node)
        left += _values(node)


def _values(node: Json) -> list[Json]:
    return list(node.values()) if isinstance(node, dict) else list(node) if isinstance(node, list) else []


def _resolved(root: Json, reference: str) -> Json:
    """Raises _Unclear unless it is the place of a part of ``root``."""
    found = root
    for name in reference[1:].split("/")[1:] if reference != "#" else ():
        key = unquote(name).replace("~1", "/").replace("~0", "~")
        if isinstance(found, list) and key.isdecimal() and int(key) < len(found):
            found = found[int(key)]
        elif isinstance(found, dict) and key in found:
            found = found[key]
        else:
            raise _Unclear
    if reference != "#" and not reference.startswith("#/"):
        raise _Unclear  # an anchor
    return found
