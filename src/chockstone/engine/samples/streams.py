"""Sample streams: the tokens of one request while they are generated.

A stream merges unread tokens: a slow reader gets fewer and longer pieces, and a stream holds no
more than the result of its request. If a worker dies, the request runs again from its seed. The tokens of the second
run are compared with those of the first, and only what is new is delivered. The last piece is delivered after the
result is on record.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, Literal, Self

from chockstone.backends.protocol import SampledPiece
from chockstone.engine.futures import Result
from chockstone.wire.codecs.sample_result import read_sequences
from chockstone.wire.failures import BadRequest, Failure, RequestError, ServerFailure

__all__ = ["SampleStream", "SampledPiece"]

_LARGE_BYTES: Final = 1 << 16  # of a result that is decoded beside the event loop
_DIFFERENT: Final = (
    "the worker died, and the tokens of the second run differ from those that were delivered. Send the request again."
)


@dataclass(slots=True)
class _Choice:
    tokens: array[int] = field(default_factory=lambda: array("i"))
    logprobs: array[float] = field(default_factory=lambda: array("f"))
    stop_reason: Literal["stop", "length"] | None = None
    delivered: int = 0  # tokens

    def extend(self, start: int, tokens: array[int], logprobs: Iterable[float]) -> bool:
        """Add the tokens that are new, and return whether there are any.

        Raises ServerFailure if the others are not those that are known.
        """
        known = len(self.tokens) - start
        if known < 0 or tokens[:known] != self.tokens[start : start + len(tokens)]:
            raise ServerFailure(_DIFFERENT)
        self.tokens.extend(tokens[known:])
        self.logprobs.extend(array("f", logprobs)[known:])
        return known < len(tokens)

    def take(self, number: int) -> SampledPiece:
        begin, self.delivered = self.delivered, len(self.tokens)
        return SampledPiece(number, tuple(self.tokens[begin:]), tuple(self.logprobs[begin:]), self.stop_reason, begin)


class SampleStream:
    """An asynchronous iterator of pieces, for one reader. It raises RequestError if the sample fails.

    A reader that stops before the end calls ``aclose``, which cancels the sample.
    """

    def __init__(self, request_id: str, *, close: Callable[[], None]) -> None:
        """``close`` is called once, when the reader has everything or wants nothing more."""
        self.request_id = request_id
        self._close = close
        self._choices: dict[int, _Choice] = {}
        self._unread: dict[int, None] = {}  # choices with something to deliver, in the order in which it came
        self._result: Result | None = None
        self._error: RequestError | None = None
        self._is_closed = False
        self._news = asyncio.Event()

    @property
    def result(self) -> Result | None:
        """How the sample ended, as ``Sampling.submit`` promises it; None before the end."""
        return self._result

    def take(self, pieces: Iterable[SampledPiece]) -> None:
        """Tokens have come from a worker."""
        if self._is_closed or self._error is not None:
            return
        try:
            for piece in pieces:
                self._add(piece.choice, piece.start, array("i", piece.tokens), piece.logprobs, piece.stop_reason)
        except ServerFailure as error:
            self._error = error
            self._finish()
        self._news.set()

    def end(self, result: Result) -> None:
        """The sample has ended, and its result is on record."""
        self._result = result
        self._news.set()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SampledPiece:
        while True:
            if self._error is not None:
                raise self._error
            if self._result is not None and not self._is_closed:
                await self._read(self._result)
                continue
            if self._unread:
                number = next(iter(self._unread))
                del self._unread[number]
                return self._choices[number].take(number)
            if self._is_closed:
                raise StopAsyncIteration
            self._news.clear()
            await self._news.wait()

    async def aclose(self) -> None:
        """Cancel the sample, unless it has ended. Its place in the worker is freed soon."""
        self._unread.clear()
        self._finish()
        self._news.set()

    async def _read(self, result: Result) -> None:
        """Take from the result what was in no piece."""
        if result.is_failure:
            failure = Failure.decode(result.body)
            self._error = (BadRequest if failure.category == "user" else ServerFailure)(failure.error)
        else:
            is_large = len(result.body) > _LARGE_BYTES
            found = await asyncio.to_thread(read_sequences, result.body) if is_large else read_sequences(result.body)
            try:
                for number, sequence in enumerate(found):
                    tokens, logprobs = array("i", sequence.tokens.tolist()), sequence.logprobs.tolist()
                    self._add(number, 0, tokens, logprobs, sequence.stop_reason)
            except ServerFailure as error:
                self._error = error
        self._finish()

    def _add(
        self,
        number: int,
        start: int,
        tokens: array[int],
        logprobs: Iterable[float],
        stop_reason: Literal["stop", "length"] | None,
    ) -> None:
        choice = self._choices.setdefault(number, _Choice())
        has_news = choice.extend(start, tokens, logprobs)
        if stop_reason is not None and start + len(tokens) < len(choice.tokens):
            raise ServerFailure(_DIFFERENT)
        if stop_reason is not None and choice.stop_reason is None:
            choice.stop_reason = stop_reason
            has_news = True
        if has_news:
            self._unread[number] = None

    def _finish(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._close()
