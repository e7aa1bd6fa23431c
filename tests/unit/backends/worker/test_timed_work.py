from __future__ import annotations

import pytest

from chockstone.backends.protocol import PassReply
from chockstone.backends.worker import timed_work


def test_a_call_says_how_long_it_computed_and_not_how_long_it_waited(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(timed_work.time, "perf_counter", lambda: clock[0])

    def work() -> timed_work.Work[PassReply]:
        for _ in range(3):
            clock[0] += 1.0
            yield None
        clock[0] += 0.5
        return PassReply(result=b"body", tokens=3)

    timed = timed_work.timed(work())
    reply = None
    while reply is None:
        try:
            next(timed)
        except StopIteration as ended:
            reply = ended.value
        clock[0] += 100.0

    assert reply == PassReply(result=b"body", tokens=3, seconds=3.5)
