"""PromQL, read closely enough to know every metric, label and function in a query.

Each token must be understood: an unknown one is an error, so that no name can be missed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

_TOKEN: Final = re.compile(
    r"""(?P<string>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
    |(?P<duration>(?:\d+(?:ms|[smhdwy]))+)
    |(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)
    |(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)
    |(?P<sign>=~|!~|!=|==|>=|<=|[-+*/%^=<>(){}\[\],])
    |(?P<space>\s+)""",
    re.VERBOSE,
)
_AGGREGATORS: Final = {"sum", "min", "max", "avg", "count", "topk", "bottomk", "quantile"}
_GROUPINGS: Final = {"by", "without", "on", "ignoring", "group_left", "group_right"}
_OPERATORS: Final = {"and", "or", "unless", "bool", "offset"}
OF_COUNTERS: Final = {"rate", "irate", "increase"}
OF_GAUGES: Final = {"predict_linear", "delta", "deriv"}
_FUNCTIONS: Final = {
    "histogram_quantile",
    "clamp_min",
    "clamp_max",
    "changes",
    "label_values",
    *OF_COUNTERS,
    *OF_GAUGES,
}


@dataclass(frozen=True, slots=True)
class Matcher:
    label: str
    operator: str
    value: str


@dataclass(slots=True)
class Selector:
    """One use of a metric."""

    metric: str
    functions: tuple[str, ...]  # around it, the innermost last
    matchers: list[Matcher] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Query:
    selectors: list[Selector]
    grouped_by: set[str]  # labels that an aggregation keeps or drops, and vectors are matched on


class _Piece(NamedTuple):
    kind: str
    text: str


def parse(query: str) -> Query:
    """Raises ValueError for what is not understood."""
    tokens = _Tokens(_split(query))
    found = Query([], set())
    calls: list[str] = []  # one for each open bracket; empty: only a bracket
    while (piece := tokens.take()) is not None:
        if piece.text == "(":
            calls.append("")
        elif piece.text == ")":
            calls.pop()
        elif piece.text == "[":
            tokens.skip_through("]")
        elif piece.text in "{}]":
            raise ValueError(f"{piece.text!r} stands alone in {query!r}")
        elif piece.kind != "name" or piece.text in _OPERATORS:
            continue
        elif piece.text in _GROUPINGS:
            found.grouped_by.update(tokens.bracketed_names())
        elif piece.text in _AGGREGATORS and tokens.next_text in ("(", "by", "without"):
            if tokens.next_text != "(":
                tokens.take()
                found.grouped_by.update(tokens.bracketed_names())
            tokens.take()
            calls.append(piece.text)
        elif tokens.next_text == "(":
            if piece.text not in _FUNCTIONS:
                raise ValueError(f"{piece.text!r} in {query!r} is no function that is known here")
            tokens.take()
            calls.append(piece.text)
        else:
            around = tuple(each for each in calls if each)
            found.selectors.append(Selector(piece.text, around, list(tokens.matchers())))
    if calls:
        raise ValueError(f"a bracket is not closed in {query!r}")
    return found


def _split(query: str) -> list[_Piece]:
    pieces, at = [], 0
    while at < len(query):
        found = _TOKEN.match(query, at)
        if found is None:
            raise ValueError(f"{query[at : at + 20]!r} is not understood in {query!r}")
        if found.lastgroup != "space":
            pieces.append(_Piece(str(found.lastgroup), found[0]))
        at = found.end()
    return pieces


class _Tokens:
    def __init__(self, pieces: list[_Piece]) -> None:
        self._pieces = pieces
        self._at = 0

    @property
    def next_text(self) -> str | None:
        return self._pieces[self._at].text if self._at < len(self._pieces) else None

    def take(self) -> _Piece | None:
        if self._at == len(self._pieces):
            return None
        self._at += 1
        return self._pieces[self._at - 1]

    def expect(self, text: str) -> None:
        if (piece := self.take()) is None or piece.text != text:
            raise ValueError(f"{piece} is not {text!r}")

    def skip_through(self, text: str) -> None:
        while (piece := self.take()) is not None and piece.text != text:
            pass

    def bracketed_names(self) -> Iterator[str]:
        self.expect("(")
        while (piece := self.take()) is not None and piece.text != ")":
            if piece.kind == "name":
                yield piece.text

    def matchers(self) -> Iterator[Matcher]:
        if self.next_text != "{":
            return
        self.take()
        while (piece := self.take()) is not None and piece.text != "}":
            if piece.text == ",":
                continue
            operator, value = self.take(), self.take()
            if piece.kind != "name" or operator is None or value is None or value.kind != "string":
                raise ValueError(f"{piece} is no matcher")
            yield Matcher(piece.text, operator.text, value.text[1:-1])
