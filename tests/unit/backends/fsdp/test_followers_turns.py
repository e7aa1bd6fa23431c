"""A follower does what its leader does, in its order."""

from __future__ import annotations

import queue
import threading
from concurrent.futures import Future
from typing import Any

from chockstone.backends.channel import Message
from chockstone.backends.fsdp.followers import FollowerTurns
from chockstone.backends.worker.compute_turns import ComputeTurns, Steps


class Generation:
    def __init__(self, log: list[str]) -> None:
        self.log = log
        self.left = 0

    def has_work(self) -> bool:
        return self.left > 0

    def step(self) -> None:
        self.left -= 1
        self.log.append("step")


class Rank:
    """Takes messages that name a task; each logs what it does, waits once for its own future, and ends."""

    def __init__(self, *, seconds: dict[str, float] | None = None) -> None:
        self.seconds = seconds or {}  # after which a future is done by itself
        self.log: list[str] = []
        self.generation = Generation(self.log)
        self.futures: dict[str, Future[None]] = {}

    def task(self, name: str) -> Steps:
        self.log.append(f"{name} begins")
        yield None
        self.futures[name] = Future()
        if name in self.seconds:
            threading.Timer(self.seconds[name], self.futures[name].set_result, [None]).start()
        yield self.futures[name]
        self.log.append(f"{name} goes on")
        self.generation.left += 1


def test_turns_are_taken_as_the_leader_gave_them_whatever_is_done_first_here() -> None:
    leader, follower = Rank(), Rank(seconds={"a": 0.01, "b": 0.1})
    orders: queue.SimpleQueue[Message] = queue.SimpleQueue()
    turns = ComputeTurns(leader.generation, on_turn=lambda number: orders.put(Message({"turn": number})))
    led = FollowerTurns(follower.generation, lambda message: led.start(follower.task(message.values["name"])))
    for name in ("a", "b"):
        orders.put(Message({"message": {"name": name}}))
        turns.start(leader.task(name))
    turns.post(lambda: None)
    while len(leader.futures) < 2:
        turns._take_in()
        turns._work()
    for name in ("b", "a"):
        leader.futures[name].set_result(None)
    turns.run(lambda: True)
    orders.put(Message({"over": True}))
    while not orders.empty():
        led.enqueue(orders.get())

    led.run(lambda: False)

    assert follower.log == leader.log
    assert leader.log[2:4] == ["b goes on", "a goes on"]
    assert leader.log.count("step") == 2


def test_the_last_order_ends_it_with_nothing_left_open() -> None:
    log: list[str] = []
    led = FollowerTurns(Generation(log), lambda message: led.start(_endless(log, message.values)))
    for order in ({"message": {"name": "a"}}, {"turn": 0}, {"over": True}):
        led.enqueue(Message(order))

    led.run(lambda: False)

    assert log == ["a", "closed"]


def _endless(log: list[str], values: Any) -> Steps:
    log.append(values["name"])
    try:
        while True:
            yield None
    finally:
        log.append("closed")
