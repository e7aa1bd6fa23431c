"""Meetings: how the followers' channels to their leader come about, once the process group is there.

The leader listens at a port of its own and tells it, with a word that nobody else knows, through the group.
"""

from __future__ import annotations

import hmac
import secrets
import socket
import time
from typing import Final

import torch
import torch.distributed as dist

from chockstone.backends.channel import BlockingChannel

_WORD_BYTES: Final = 32
_PORT_BYTES: Final = 2


def meet(host: str, *, timeout_seconds: float) -> list[BlockingChannel]:
    """The leader's channels to all others, or a follower's one channel to the leader at ``host``.

    Called by all ranks. Raises OSError.
    """
    said = torch.zeros(_WORD_BYTES + _PORT_BYTES, dtype=torch.uint8)
    if dist.get_rank():
        dist.broadcast(said, 0)
        told = bytes(said.numpy())
        sock = socket.create_connection((host, int.from_bytes(told[_WORD_BYTES:], "little")), timeout=timeout_seconds)
        sock.sendall(told[:_WORD_BYTES])
        return [_channel(sock)]
    with socket.create_server((host, 0)) as listening:
        word = secrets.token_bytes(_WORD_BYTES)
        port = listening.getsockname()[1].to_bytes(_PORT_BYTES, "little")
        dist.broadcast(torch.frombuffer(bytearray(word + port), dtype=torch.uint8), 0)
        return _accept(listening, word, dist.get_world_size() - 1, time.monotonic() + timeout_seconds)


def _accept(listening: socket.socket, word: bytes, count: int, deadline_monotonic: float) -> list[BlockingChannel]:
    channels: list[BlockingChannel] = []
    while len(channels) < count:
        listening.settimeout(max(0.0, deadline_monotonic - time.monotonic()) or 1e-3)
        sock, _ = listening.accept()
        sock.settimeout(10.0)
        if _knows(sock, word):
            channels.append(_channel(sock))
        else:
            sock.close()  # a stranger
    return channels


def _knows(sock: socket.socket, word: bytes) -> bool:
    said = b""
    try:
        while len(said) < len(word) and (more := sock.recv(len(word) - len(said))):
            said += more
    except OSError:
        return False
    return hmac.compare_digest(said, word)


def _channel(sock: socket.socket) -> BlockingChannel:
    sock.settimeout(None)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return BlockingChannel(sock)
