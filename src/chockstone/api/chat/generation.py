"""Generations: what a model writes, as text, calls of tools and tokens, while it is written."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, Self

import numpy as np

from chockstone.api.chat.detokenizer import Detokenizer
from chockstone.api.chat.tool_calls import MARKS, ToolCall, ToolCallParser
from chockstone.api.tokenizers.tokenizer_service import TokenTable
from chockstone.engine.samples.streams import SampledPiece, SampleStream
from chockstone.wire.codecs import messages_pb2 as pb
from chockstone.wire.codecs.sample_result import NO_LOGPROB

FinishKind = Literal["stop", "length", "tool_calls"]
Alternatives = tuple[tuple[int, bytes, float], ...]  # token, its bytes, its logprob; the most likely first
_LARGE_TOKENS: Final = 4096  # of one piece, times its stop strings; more are turned into text beside the event loop


@dataclass(frozen=True, slots=True)
class SampledText:
    """A token as text. ``data``: its bytes, which may be a part of a character."""

    token: int
    data: bytes
    logprob: float  # at the sampling temperature
    alternatives: Alternatives = ()


@dataclass(frozen=True, slots=True)
class Finish:
    """``stop_string``: the one that ended the text; None: another reason."""

    reason: FinishKind
    stop_string: str | None = None


@dataclass(frozen=True, slots=True)
class Delta:
    """Some more of one choice. Text may lag behind the tokens: what may begin a stop string is held back."""

    choice: int
    parts: tuple[str | ToolCall, ...]
    tokens: tuple[SampledText, ...]  # all of them, the stop token too
    finish: Finish | None = None  # with the last delta of the choice


@dataclass(slots=True)
class GeneratedChoice:
    """What has come of one choice so far."""

    parts: list[str | ToolCall] = field(default_factory=list)
    tokens: list[SampledText] = field(default_factory=list)
    finish: Finish | None = None

    @property
    def text(self) -> str:
        return "".join(part for part in self.parts if isinstance(part, str))

    @property
    def calls(self) -> list[ToolCall]:
        return [part for part in self.parts if isinstance(part, ToolCall)]

    def add(self, delta: Delta) -> None:
        for part in delta.parts:
            if isinstance(part, str) and self.parts and isinstance(last := self.parts[-1], str):
                self.parts[-1] = last + part
            else:
                self.parts.append(part)
        self.tokens += delta.tokens
        self.finish = delta.finish


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How tokens of an answer become text."""

    table: TokenTable
    stop: Sequence[str] = ()
    tool_format: str | None = None  # None: the model was offered no tools
    begin: str = ""  # the beginning of a call, which the prompt has already
    single_call: bool = False
    has_begun: bool = False  # the prompt ends with text of the answer, which is not told again


class TextGeneration:
    """An asynchronous iterator of deltas, for one reader. Raises RequestError if the sample fails.

    The reader closes it with ``aclose``, which frees its place in the worker.
    """

    def __init__(
        self,
        stream: SampleStream,
        reading: Reading,
        *,
        prompt_tokens: tuple[int, ...],
        choices: int,
        waits_for_end: bool = False,
        before_end: BeforeEnd | None = None,
    ) -> None:
        """``waits_for_end``: alternatives of the tokens are wanted, which only the result of the sample has.

        ``before_end`` is awaited when all has come, before the reader gets the last delta. What it raises, the reader
        gets instead.
        """
        self.prompt_tokens = prompt_tokens
        self.cached_tokens: int | None = None  # of the prompt, which were not computed again; known at the end
        self.choices = tuple(GeneratedChoice() for _ in range(choices))
        self._stream = stream
        self._large_tokens = _LARGE_TOKENS // max(1, len(reading.stop))
        self._readers = [_ChoiceReader(number, reading) for number in range(choices)]
        self._waits_for_end = waits_for_end
        self._before_end = before_end
        self._ready: deque[Delta] = deque()

    @property
    def request_id(self) -> str:
        return self._stream.request_id

    @property
    def completion_tokens(self) -> int:
        """Of all choices, so far."""
        return sum(len(choice.tokens) for choice in self.choices)

    @property
    def is_finished(self) -> bool:
        return all(reader.is_finished for reader in self._readers)

    async def begin(self) -> None:
        """Wait for the first delta. A sample that is refused raises here."""
        await self._fill()

    async def finish(self) -> None:
        """Read all that is left."""
        async for _ in self:
            pass

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delta:
        await self._fill()
        if not self._ready:
            raise StopAsyncIteration
        delta = self._ready.popleft()
        if self.is_finished and not self._ready:
            await self._end()  # the last delta comes when the sample is on record
        self.choices[delta.choice].add(delta)
        if self.is_finished and not self._ready and self._before_end is not None:
            await self._before_end(self)
        return delta

    async def aclose(self) -> None:
        """Cancel the sample, unless it has ended."""
        await self._stream.aclose()

    async def _fill(self) -> None:
        while not self._ready:
            if self.is_finished:
                await self._end()
                return
            if self._waits_for_end:
                pieces = [piece async for piece in self._stream]
                self._ready += await asyncio.to_thread(self._read_whole, pieces)
            elif len((piece := await anext(self._stream)).tokens) > self._large_tokens:
                self._ready += await asyncio.to_thread(self._read, [piece], {})
            else:
                self._ready += self._read([piece], {})

    def _read_whole(self, pieces: list[SampledPiece]) -> list[Delta]:
        """Those of all choices, with alternatives, take long."""
        result = self._stream.result
        assert result is not None, "the stream has ended"
        return self._read(pieces, _read_alternatives(result.body))

    def _read(
        self, pieces: list[SampledPiece], alternatives: Mapping[int, list[list[tuple[int, float]]]]
    ) -> list[Delta]:
        """``alternatives``: by choice and position."""
        found = [self._readers[piece.choice].read(piece, alternatives.get(piece.choice, [])) for piece in pieces]
        return [delta for delta in found if delta is not None]

    async def _end(self) -> None:
        """Every choice has ended. The stream ends too, unless choices were cut short here."""
        if self.cached_tokens is None:
            if any(reader.is_cut_short for reader in self._readers):
                await self.aclose()
            else:
                async for _ in self._stream:  # until the result is on record
                    pass
            result = self._stream.result
            is_there = result is not None and not result.is_failure
            self.cached_tokens = 0
            if result is not None and is_there:
                self.cached_tokens = pb.SampleResponse.FromString(result.body).prompt_cache_hit_tokens


BeforeEnd = Callable[[TextGeneration], Awaitable[None]]


class _ChoiceReader:
    def __init__(self, number: int, reading: Reading) -> None:
        self._number = number
        self._single_call = reading.single_call
        keep = MARKS if reading.tool_format is not None else ()
        self._detokenizer = Detokenizer(reading.table, stops=reading.stop, keep=keep)
        self._parser = (
            None if reading.tool_format is None else ToolCallParser(reading.tool_format, has_text=reading.has_begun)
        )
        self._pending = [] if self._parser is None else self._parser.add(reading.begin)
        self._has_calls = False
        self.is_finished = False
        self.is_cut_short = False  # the sample may still write more

    def read(self, piece: SampledPiece, alternatives: list[list[tuple[int, float]]]) -> Delta | None:
        """None: the choice has ended already."""
        if self.is_finished:
            return None
        text = self._detokenizer.add(piece.tokens)
        is_last = piece.stop_reason is not None or self._detokenizer.stop_string is not None
        text += self._detokenizer.finish() if is_last else ""
        parts = self._parts(text, is_last=is_last)
        calls = [place for place, part in enumerate(parts) if isinstance(part, ToolCall)]
        self._has_calls = self._has_calls or bool(calls)
        if calls and self._single_call:
            parts = parts[: calls[0] + 1]
            is_last = True
        tokens = tuple(self._sampled(piece, alternatives))
        self.is_finished = is_last
        self.is_cut_short = is_last and piece.stop_reason is None
        return Delta(self._number, tuple(parts), tokens, self._finish(piece) if is_last else None)

    def _parts(self, text: str, *, is_last: bool) -> list[str | ToolCall]:
        if self._parser is None:
            return [text] if text else []
        pending, self._pending = self._pending, []
        return [*pending, *self._parser.add(text), *(self._parser.finish() if is_last else [])]

    def _sampled(self, piece: SampledPiece, alternatives: list[list[tuple[int, float]]]) -> list[SampledText]:
        bytes_of = self._detokenizer.bytes_of
        rows = alternatives[piece.start : piece.start + len(piece.tokens)] or [[]] * len(piece.tokens)
        return [
            SampledText(token, bytes_of(token), logprob, tuple((other, bytes_of(other), value) for other, value in row))
            for token, logprob, row in zip(piece.tokens, piece.logprobs, rows, strict=True)
        ]

    def _finish(self, piece: SampledPiece) -> Finish:
        stop_string = self._detokenizer.stop_string
        if self._has_calls and (piece.stop_reason != "length" or self._single_call):
            return Finish("tool_calls", stop_string)
        return Finish("length" if piece.stop_reason == "length" and stop_string is None else "stop", stop_string)


def _read_alternatives(body: bytes) -> dict[int, list[list[tuple[int, float]]]]:
    found: dict[int, list[list[tuple[int, float]]]] = {}
    for number, sequence in enumerate(pb.SampleResponse.FromString(body).sequences):
        topk = sequence.topk_sampled_logprobs
        if not topk.k:
            continue
        tokens = np.frombuffer(topk.token_ids, np.dtype("<i4")).reshape(topk.length, topk.k)
        logprobs = np.frombuffer(topk.logprobs, np.dtype("<f4")).reshape(topk.length, topk.k)
        rows = zip(tokens.tolist(), logprobs.tolist(), strict=True)
        found[number] = [[pair for pair in zip(*row, strict=True) if pair[1] != NO_LOGPROB] for row in rows]
    return found
