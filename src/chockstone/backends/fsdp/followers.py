"""Followers: how the ranks other than rank 0 do what rank 0, the leader, does, in the same order.

The leader sends each follower over a channel of its own every call that it receives and every compute turn that it
takes, before it takes it. Followers send nothing back: the collectives inside the turns keep the ranks in step.
"""

from __future__ import annotations

import hmac
import queue
import secrets
import socket
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.distributed as dist

from chockstone.backends.channel import BlockingChannel, ChannelClosed, Message
from chockstone.backends.worker.compute_turns import Steps, TaskSource

_TOKEN_BYTES: Final = 32
_TOKEN_SECONDS: Final = 10.0  # for a connection to send its token
_PORT_BYTES: Final = 2


def connect_ranks(host: str, *, timeout_seconds: float) -> list[BlockingChannel]:
    """Returns the leader's channels to all followers, or a follower's one channel to the leader at ``host``.

    Called by all ranks when the process group exists. The leader listens on a free port and broadcasts the port and a
    secret token through the group. Raises OSError.
    """
    address = torch.zeros(_TOKEN_BYTES + _PORT_BYTES, dtype=torch.uint8)
    if dist.get_rank():
        dist.broadcast(address, 0)
        content = bytes(address.numpy())
        token, port = content[:_TOKEN_BYTES], int.from_bytes(content[_TOKEN_BYTES:], "little")
        sock = socket.create_connection((host, port), timeout=timeout_seconds)
        sock.sendall(token)
        return [_channel(sock)]
    with socket.create_server((host, 0)) as listener:
        token = secrets.token_bytes(_TOKEN_BYTES)
        encoded_port = listener.getsockname()[1].to_bytes(_PORT_BYTES, "little")
        dist.broadcast(torch.frombuffer(bytearray(token + encoded_port), dtype=torch.uint8), 0)
        return _accept(listener, token, dist.get_world_size() - 1, time.monotonic() + timeout_seconds)


def _accept(listener: socket.socket, token: bytes, count: int, deadline_monotonic: float) -> list[BlockingChannel]:
    channels: list[BlockingChannel] = []
    while len(channels) < count:
        listener.settimeout(max(0.0, deadline_monotonic - time.monotonic()) or 1e-3)
        sock, _ = listener.accept()
        sock.settimeout(_TOKEN_SECONDS)
        if _has_token(sock, token):
            channels.append(_channel(sock))
        else:
            sock.close()
    return channels


def _has_token(sock: socket.socket, token: bytes) -> bool:
    received = b""
    try:
        while len(received) < len(token) and (more := sock.recv(len(token) - len(received))):
            received += more
    except OSError:
        return False
    return hmac.compare_digest(received, token)


def _channel(sock: socket.socket) -> BlockingChannel:
    sock.settimeout(None)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return BlockingChannel(sock)


class FollowerBroadcast:
    """The leader's side: sends each follower what the leader is about to do."""

    def __init__(self, followers: Sequence[BlockingChannel]) -> None:
        self._followers = followers
        self._is_over = False

    def watch(self, *, on_lost: Callable[[], None]) -> None:
        """Call ``on_lost``, from a thread, when a follower closes its channel before ``send_end``."""
        for follower in self._followers:
            threading.Thread(target=self._watch, args=[follower, on_lost], name="follower", daemon=True).start()

    def send_call(self, message: Message) -> None:
        self._send(Message({"message": message.values}, message.body))

    def send_turn(self, task: int | None) -> None:
        """``task`` is the number of the task that gets the turn; None: the source of other work."""
        self._send(Message({"turn": task}))

    def send_end(self) -> None:
        self._is_over = True
        self._send(Message({"over": True}))

    def _send(self, message: Message) -> None:
        for follower in self._followers:
            with suppress(ChannelClosed):  # the thread that watches the follower calls on_lost
                follower.send(message)

    def _watch(self, follower: BlockingChannel, on_lost: Callable[[], None]) -> None:
        try:
            follower.receive()  # a follower sends nothing, so this returns only when the channel closes
        except ChannelClosed:
            if not self._is_over:
                on_lost()


@dataclass(slots=True)
class _Task:
    steps: Steps
    awaited: Future[Any] | None = None


class FollowerTurns:
    """The follower's side: a schedule that takes the turns of its leader.

    Tasks have the same numbers as at the leader, since all ranks start the same tasks in the same order. A turn may
    arrive before the future that its task awaits is done here. Then the follower waits, and runs what is posted
    meanwhile. Only ``post``, ``progress`` and ``enqueue`` may be called from other threads than the compute thread.
    """

    def __init__(self, source: TaskSource, take: Callable[[Message], None]) -> None:
        self._source = source
        self._take = take
        self._messages: queue.SimpleQueue[Message] = queue.SimpleQueue()  # of the leader's FollowerBroadcast
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._tasks: dict[int, _Task] = {}
        self._started = 0
        self._finished = 0

    def post(self, action: Callable[[], None]) -> None:
        self._inbox.put(action)

    def start(self, steps: Steps, *, owner: str = "") -> None:  # noqa: ARG002  # the leader shares turns out
        self._tasks[self._started] = _Task(steps)
        self._started += 1

    def progress(self) -> tuple[int, bool]:
        return self._finished, bool(self._tasks)

    def enqueue(self, message: Message) -> None:
        """Add a message of the leader's ``FollowerBroadcast``."""
        self._messages.put(message)

    def run(self, is_over: Callable[[], bool]) -> None:  # noqa: ARG002  # the leader sends the end
        """Take the leader's turns until it sends the end."""
        while "over" not in (message := self._messages.get()).values:
            self._run_posted()
            if "message" in message.values:
                self._take(Message(message.values["message"], message.body))
                continue
            number = message.values["turn"]
            if number is None:
                self._source.step()
            else:
                self._advance(number)
            self._finished += 1
        while self._tasks:  # none, unless the leader ended with unfinished tasks
            self._tasks.popitem()[1].steps.close()

    def _advance(self, number: int) -> None:
        task = self._tasks[number]
        while task.awaited is not None and not task.awaited.done():
            self._inbox.get()()
        try:
            task.awaited = next(task.steps)
        except StopIteration:
            del self._tasks[number]
            return
        if task.awaited is not None:
            task.awaited.add_done_callback(lambda _: self.post(_do_nothing))  # wakes the loop above

    def _run_posted(self) -> None:
        while not self._inbox.empty():
            self._inbox.get()()


def _do_nothing() -> None:
    pass
