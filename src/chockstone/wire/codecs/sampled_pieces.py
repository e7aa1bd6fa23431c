"""Sampled pieces: tokens of samples that are being generated, and their bytes between worker and server.

Imports no numpy: the engine and the worker protocol use this file.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class SampledPiece:
    """Some more tokens of one sequence."""

    choice: int  # which of the samples of its request
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]  # of these tokens, at the sampling temperature
    stop_reason: Literal["stop", "length"] | None = None  # with the last piece of the sequence
    start: int = 0  # how many tokens of the sequence came before these


def encode_pieces(pieces: Iterable[SampledPiece]) -> tuple[Mapping[str, Any], bytes]:  # Any: plain JSON
    """Rows as JSON, and as bytes all tokens (int32) and then all logprobs (float32), little endian."""
    rows: list[tuple[int, int, int, str | None]] = []
    tokens, logprobs = array("i"), array("f")
    for piece in pieces:
        rows.append((piece.choice, piece.start, len(piece.tokens), piece.stop_reason))
        tokens.extend(piece.tokens)
        logprobs.extend(piece.logprobs)
    return {"rows": rows}, _bytes_of(tokens) + _bytes_of(logprobs)


def decode_pieces(values: Mapping[str, Any], body: bytes) -> list[SampledPiece]:
    """The pieces that ``encode_pieces`` was given; logprobs are rounded to float32."""
    middle = len(body) // 2
    tokens, logprobs = _items("i", body[:middle]), _items("f", body[middle:])
    pieces: list[SampledPiece] = []
    begin = 0
    for choice, start, count, stop_reason in values["rows"]:
        end = begin + count
        pieces.append(SampledPiece(choice, tuple(tokens[begin:end]), tuple(logprobs[begin:end]), stop_reason, start))
        begin = end
    return pieces


def _bytes_of(items: array[Any]) -> bytes:  # Any: int or float
    if sys.byteorder == "big":
        items.byteswap()
    return items.tobytes()


def _items(code: Literal["i", "f"], content: bytes) -> array[Any]:  # Any: int or float
    items: array[Any] = array(code, content)
    if sys.byteorder == "big":
        items.byteswap()
    return items
