"""The herald: tells the leader's followers what it does, in order, before it does it.

A follower gets over its own channel each message that the leader takes and each turn that it gives. Nothing is
answered: the collectives of the turns keep the ranks together.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

from chockstone.backends.channel import BlockingChannel, ChannelClosed, Message


class FollowerBroadcast:
    def __init__(self, followers: Sequence[BlockingChannel]) -> None:
        self._followers = followers
        self._is_over = False

    def watch(self, *, on_lost: Callable[[], None]) -> None:
        """``on_lost`` is called, by a thread, when a follower is gone before its time."""
        for follower in self._followers:
            threading.Thread(target=self._watch, args=[follower, on_lost], name="follower", daemon=True).start()

    def tell(self, message: Message) -> None:
        self._send(Message({"message": message.values}, message.body))

    def tell_turn(self, task: int | None) -> None:
        self._send(Message({"turn": task}))

    def dismiss(self) -> None:
        self._is_over = True
        self._send(Message({"over": True}))

    def _send(self, message: Message) -> None:
        for follower in self._followers:
            with suppress(ChannelClosed):  # which whoever watches it finds out, too
                follower.send(message)

    def _watch(self, follower: BlockingChannel, on_lost: Callable[[], None]) -> None:
        try:
            follower.receive()  # it never says anything
        except ChannelClosed:
            if not self._is_over:
                on_lost()
