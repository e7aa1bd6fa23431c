"""The channel: messages between the server and its worker, over one socket.

A message is a small JSON object (the head) and a body of bytes. On the socket the two lengths come first (``<IQ``).
Nothing is ever unpickled.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

_LENGTHS = struct.Struct("<IQ")


@dataclass(frozen=True, slots=True)
class Message:
    values: Mapping[str, Any] = field(default_factory=dict)  # Any: plain JSON
    body: bytes = b""


class ChannelClosed(Exception):
    """The other end has closed the socket, or its process has ended."""


def _frame(message: Message) -> bytes:
    head = orjson.dumps(message.values)
    return _LENGTHS.pack(len(head), len(message.body)) + head


class BlockingChannel:
    """The worker's end: one thread reads, any thread writes."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._file = sock.makefile("rb", buffering=1 << 20)
        self._writing = threading.Lock()

    def receive(self) -> Message:
        head_size, body_size = _LENGTHS.unpack(self._read(_LENGTHS.size))
        return Message(orjson.loads(self._read(head_size)), self._read(body_size))

    def send(self, message: Message) -> None:
        try:
            with self._writing:
                self._socket.sendall(_frame(message))
                if message.body:
                    self._socket.sendall(message.body)
        except OSError as error:
            raise ChannelClosed(str(error)) from error

    def close(self) -> None:
        """Call this after the last ``receive`` has returned."""
        self._file.close()
        self._socket.close()

    def _read(self, size: int) -> bytes:
        try:
            content: bytes = self._file.read(size)
        except OSError as error:
            raise ChannelClosed(str(error)) from error
        if len(content) < size:
            raise ChannelClosed("the socket was closed")
        return content


class AsyncChannel:
    """The server's end, on its event loop."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def over(cls, sock: socket.socket) -> AsyncChannel:
        return cls(*await asyncio.open_connection(sock=sock, limit=1 << 24))

    async def receive(self) -> Message:
        try:
            head_size, body_size = _LENGTHS.unpack(await self._reader.readexactly(_LENGTHS.size))
            head = await self._reader.readexactly(head_size)
            body = await self._reader.readexactly(body_size) if body_size else b""
        except (OSError, asyncio.IncompleteReadError) as error:
            raise ChannelClosed(str(error)) from error
        return Message(orjson.loads(head), body)

    @property
    def is_closed(self) -> bool:
        """Whether a message would not be sent any more."""
        return self._writer.is_closing()

    async def send(self, message: Message) -> None:
        if self.is_closed:
            raise ChannelClosed("the socket was closed")
        self._writer.write(_frame(message))  # the two writes stand together: nothing awaits between them
        if message.body:
            self._writer.write(message.body)
        try:
            await self._writer.drain()
        except OSError as error:
            raise ChannelClosed(str(error)) from error

    def close(self) -> None:
        self._writer.close()

    def abort(self) -> None:
        """Close the channel and drop what is not sent yet."""
        self._writer.transport.abort()
