"""The tokenizer service: text to tokens and back, by a child process that starts with the first request.

One request runs at a time, also when its client has left, and the owners of requests take turns. A child that does not
answer in time is killed, and one that has been idle for long is ended, with the tokenizers in its memory; the next
request starts another one. The child ends with the server, because its standard input ends.
"""

from __future__ import annotations

import asyncio
import base64
import json
import subprocess
import sys
import threading
import weakref
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import orjson

from chockstone.api.tokenizers import tokenizer_process
from chockstone.api.tokenizers.fair_turns import FairTurns

_COMMAND: Final = (sys.executable, "-I", tokenizer_process.__file__)  # -I: nothing of the working directory is imported
_REPLY_BYTES: Final = 64 << 20
MAX_WAITING: Final = 1024
_KEPT_TABLES: Final = 8
IDLE_SECONDS: Final = 600.0
ANSWER_SECONDS: Final = 30.0  # a large tokenizer takes seconds to load on a busy machine


class TokenizerFailed(Exception):
    """Why text could not be encoded or decoded, for the person who asked."""


class TextTooLong(TokenizerFailed):
    """There is more text than any model takes."""


class TokenizerBusy(TokenizerFailed):
    """Too many texts wait; the same one will be taken in a moment."""


@dataclass(frozen=True, slots=True)
class TokenizerFacts:
    has_chat_template: bool
    vocabulary: int


@dataclass(frozen=True, slots=True)
class EncodedPrompt:
    tokens: tuple[int, ...]  # none if there are more than were wanted
    text: str  # as the chat template wrote it, or as it was given; empty if the tokens were limited
    count: int  # of tokens; if they were limited and it is not exact, there are more
    is_exact: bool = True


@dataclass(frozen=True, slots=True)
class ChatMessage:
    role: str
    content: str


@dataclass(frozen=True, slots=True)
class DecodedTokens:
    pieces: tuple[str, ...]  # the text that each token adds
    singles: Mapping[int, str]  # the text of each token by itself


@dataclass(frozen=True, slots=True)
class TokenTable:
    """The bytes that each token adds to a text, by token."""

    pieces: tuple[bytes, ...]
    special: Mapping[int, str]  # tokens that are marks and no text


class _Child:
    """The child process, which ends with the service that has it."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = tuple(command)
        self.process: subprocess.Popen[bytes] | None = None

    def running(self) -> subprocess.Popen[bytes]:
        if self.process is None or self.process.poll() is not None:
            self.end()
            self.process = subprocess.Popen(  # noqa: S603  # our own script
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
        return self.process

    def end(self) -> None:
        process, self.process = self.process, None
        if process is None:
            return
        process.kill()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with suppress(OSError):  # unsent bytes of a dead child
                    pipe.close()
        process.wait()


class TokenizerService:
    def __init__(
        self,
        *,
        answer_seconds: float = ANSWER_SECONDS,
        idle_seconds: float = IDLE_SECONDS,
        command: Sequence[str] = _COMMAND,
    ) -> None:
        self._answer_seconds = answer_seconds
        self._idle_seconds = idle_seconds
        self._idle: asyncio.TimerHandle | None = None  # ends the child
        self._turns = FairTurns()  # requests wait here, and hold no thread
        self._exchanges: set[asyncio.Task[bytes]] = set()  # one at most; it outlasts a request that was cancelled
        self._turn = threading.Lock()  # of the thread that talks to the child
        self._child = _Child(command)
        self._tables: OrderedDict[Path, TokenTable] = OrderedDict()
        weakref.finalize(self, self._child.end)

    async def describe(self, directory: Path, *, owner: str = "") -> TokenizerFacts:
        """``owner``, here and below: who asks; owners take turns."""
        found = await self._ask({"do": "describe", "directory": str(directory)}, owner)
        return TokenizerFacts(bool(found["chat"]), int(found["vocabulary"]))

    async def encode(
        self,
        directory: Path,
        text: str,
        *,
        adds_special: bool = True,
        most: int | None = None,
        is_exact: bool = False,
        owner: str = "",
    ) -> EncodedPrompt:
        """``adds_special``: with the special tokens that the tokenizer adds by itself.

        ``most``: tokens that are wanted; None: all. ``is_exact``: of more, the exact number.
        """
        request = {"do": "encode", "directory": str(directory), "text": text, "adds_special": adds_special}
        return _prompt(await self._ask({**request, "most": most, "is_exact": is_exact}, owner))

    async def encode_chat(self, directory: Path, messages: Sequence[ChatMessage]) -> EncodedPrompt:
        """By the model's chat template, with the beginning of the answer."""
        plain = [{"role": message.role, "content": message.content} for message in messages]
        return await self.encode_conversation(directory, plain)

    async def encode_conversation(
        self,
        directory: Path,
        messages: Sequence[Mapping[str, Any]],  # Any: plain JSON, as chat templates read it
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,  # Any: as above
        options: Mapping[str, Any] | None = None,  # Any: as above
        begin: str = "",
        most: int | None = None,
        is_exact: bool = False,
        owner: str = "",
    ) -> EncodedPrompt:
        """As ``encode_chat``. ``begin`` is the beginning of the answer, which the model continues. ``most`` and
        ``is_exact``: as with ``encode``.
        """
        request = {"do": "encode_chat", "directory": str(directory), "messages": list(messages), "tools": tools}
        more = {"options": options, "begin": begin, "most": most, "is_exact": is_exact}
        return _prompt(await self._ask({**request, **more}, owner))

    async def tool_format(self, directory: Path, *, owner: str = "") -> str | None:
        """How the model's template has it write calls of tools; None: the template knows no tools."""
        found = (await self._ask({"do": "tools", "directory": str(directory)}, owner))["format"]
        return None if found is None else str(found)

    async def table(self, directory: Path, *, owner: str = "") -> TokenTable:
        """Read once; the last few are kept."""
        if (known := self._tables.get(directory)) is not None:
            self._tables.move_to_end(directory)
            return known
        found = await self._ask({"do": "table", "directory": str(directory)}, owner)
        table = self._tables[directory] = await asyncio.to_thread(_read_table, found)
        if len(self._tables) > _KEPT_TABLES:
            self._tables.popitem(last=False)
        return table

    async def decode(
        self, directory: Path, tokens: Sequence[int], *, singles: Sequence[int], owner: str = ""
    ) -> DecodedTokens:
        request = {"do": "decode", "directory": str(directory), "tokens": list(tokens), "singles": list(singles)}
        found = await self._ask(request, owner)
        return DecodedTokens(tuple(found["pieces"]), dict(zip(singles, found["singles"], strict=True)))

    def close(self) -> None:
        """End the child. A later request starts another one."""
        with self._turn:
            self._child.end()

    async def _ask(self, request: Mapping[str, Any], owner: str) -> dict[str, Any]:  # Any: plain JSON
        """Raises TokenizerFailed."""
        if not self._turns.has_room(owner, most=MAX_WAITING):
            raise TokenizerBusy(f"{self._waiting} other texts wait for the tokenizer; try again in a moment")
        await self._turns.take(owner)
        exchange = asyncio.create_task(asyncio.to_thread(self._exchange, request))
        self._exchanges.add(exchange)
        exchange.add_done_callback(partial(self._exchanged, owner))
        reply = await asyncio.shield(exchange)  # who leaves keeps the turn until the child is free again
        found: dict[str, Any] = await asyncio.to_thread(orjson.loads, reply)
        if (problem := found.get("problem")) is not None:
            raise (TextTooLong if found.get("is_too_long") else TokenizerFailed)(str(problem))
        return found

    @property
    def _waiting(self) -> int:
        return self._turns.total

    def _exchanged(self, owner: str, exchange: asyncio.Task[bytes]) -> None:
        self._exchanges.discard(exchange)
        if not exchange.cancelled():
            exchange.exception()  # who asked may have left
        self._turns.give_back(owner)
        self._end_when_idle()

    def _end_when_idle(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
        loop, service = asyncio.get_running_loop(), weakref.ref(self)

        def end() -> None:
            if (found := service()) is not None and not found._waiting:
                loop.run_in_executor(None, found.close)

        self._idle = loop.call_later(self._idle_seconds, end)

    def _exchange(self, request: Mapping[str, Any]) -> bytes:  # Any: plain JSON
        line = _line(request)
        with self._turn:
            process = self._child.running()
            timer = threading.Timer(self._answer_seconds, process.kill)
            timer.start()
            try:
                reply = self._talk(process, line)
            finally:
                timer.cancel()
            if not reply.endswith(b"\n"):
                self._child.end()
                raise TokenizerFailed(
                    f"the tokenizer process ended, or did not answer within {self._answer_seconds:g} s; send less text"
                )
            return reply

    @staticmethod
    def _talk(process: subprocess.Popen[bytes], line: bytes) -> bytes:
        if process.stdin is None or process.stdout is None:
            return b""
        with suppress(OSError):  # the child died; its output ends, too
            process.stdin.write(line)
            process.stdin.flush()
        return process.stdout.readline(_REPLY_BYTES)


def _line(request: Mapping[str, Any]) -> bytes:  # Any: plain JSON
    """By orjson, which holds the interpreter for a fraction of the time, if it can: Python has longer integers."""
    try:
        return orjson.dumps(request) + b"\n"
    except TypeError:
        return json.dumps(request).encode() + b"\n"


def _prompt(found: Mapping[str, Any]) -> EncodedPrompt:  # Any: plain JSON
    return EncodedPrompt(tuple(found["tokens"]), str(found["text"]), int(found["count"]), bool(found["is_exact"]))


def _read_table(found: Mapping[str, Any]) -> TokenTable:  # Any: plain JSON
    joined, pieces, begin = base64.b64decode(found["bytes"]), [], 0
    for length in found["lengths"]:
        pieces.append(joined[begin : begin + length])
        begin += length
    return TokenTable(tuple(pieces), {int(token): text for token, text in found["special"].items()})
