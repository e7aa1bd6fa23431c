"""Users of one worker: each takes turns of their own, counted by the answers that come before theirs."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from chockstone.backends.channel import BlockingChannel, Message
from chockstone.backends.worker import service
from support.backends.bodies import pass_body, sample_body
from unit.backends.worker.test_service import SPEC, Client, client, store

__all__ = ["client", "store"]
LONG = (64,) * 16 * 10  # ten micro-batches


class Gate:
    """Holds the compute thread at its first pass or sample until the worker has received so many messages."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._received = 0
        self._expected: int | None = None
        self._change = threading.Condition()
        for name in ("decode_routed_pass", "decode_sample"):
            monkeypatch.setattr(service, name, self._after_all(getattr(service, name)))
        receive = BlockingChannel.receive

        def counted(channel: BlockingChannel) -> Message:
            message = receive(channel)
            if threading.current_thread().name == "channel":
                with self._change:
                    self._received += 1
                    self._change.notify_all()
            return message

        monkeypatch.setattr(BlockingChannel, "receive", counted)

    def open_after(self, messages: int) -> None:
        """So many of them, counted from the worker's start."""
        with self._change:
            self._expected = messages
            self._change.notify_all()

    def _after_all(self, decode: Any) -> Any:
        def wait(body: Any, **more: Any) -> Any:
            with self._change:
                assert self._change.wait_for(
                    lambda: self._expected is not None and self._received >= self._expected, timeout=60
                )
            return decode(body, **more)

        return wait


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    return Gate(monkeypatch)


def answers_before(client: Client, awaited: set[int]) -> int:
    """How many other calls are answered before the last of these."""
    others = 0
    while awaited:
        message = client.receive()
        assert message.values["event"] == "done", message.values
        others += message.values["id"] not in awaited
        awaited.discard(message.values["id"])
    return others


def drain(client: Client, count: int) -> None:
    for _ in range(count):
        client.receive()


def test_a_pass_of_one_user_waits_for_a_turn_of_another_not_for_all_their_runs(gate: Gate, client: Client) -> None:
    for number in range(6):
        client.values("open_run", run_id=f"flood {number}", owner="ann", base_model="tiny", spec=SPEC)
    client.values("open_run", run_id="small", owner="bob", base_model="tiny", spec=SPEC)
    flood = [client.send("forward_backward", pass_body(*LONG), run_id=f"flood {number}") for number in range(6)]
    small = client.send("forward_backward", pass_body(*LONG), run_id="small")
    gate.open_after(small + 1)

    before = answers_before(client, {small})

    drain(client, len(flood) - before)
    assert before == 0, "all passes take the same number of turns, and every other turn is bob's"


def test_a_sample_of_one_user_waits_for_no_sample_of_another(gate: Gate, client: Client) -> None:
    what = {"base_model": "tiny", "archive": None, "seed": 1}
    long, short = sample_body([3, 4], num_samples=8, max_tokens=60), sample_body([3, 4], max_tokens=2)
    flood = [client.send("sample", long, key=f"flood {n}", owner="ann", **what) for n in range(100)]
    small = [client.send("sample", short, key=f"small {n}", owner=f"user {n}", **what) for n in range(16)]
    gate.open_after(small[-1] + 1)

    before = answers_before(client, set(small))

    drain(client, len(flood) - before)
    assert before == 0
