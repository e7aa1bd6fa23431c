from __future__ import annotations

import queue

import pytest

from chockstone.backends.calls import BeatEvent, DoneEvent, WorkerEvent
from chockstone.backends.channel import Message
from chockstone.backends.protocol import SamplerStatus
from chockstone.backends.supervision import heartbeat
from chockstone.backends.supervision.heartbeat import HeartbeatLimits, HeartbeatMonitor, HeartbeatSender

PATIENCE = HeartbeatLimits(check_seconds=2.0, silence_checks=3, stuck_seconds=10.0)


DONE = DoneEvent(1, Message())


def beat(turns: int, *, busy: bool) -> BeatEvent:
    return BeatEvent(turns, busy)


def checks_until_hung(watch: HeartbeatMonitor) -> int:
    count = 1
    while watch.check():
        count += 1
    return count


def test_a_worker_that_says_nothing_is_hung_after_so_many_checks() -> None:
    watch = HeartbeatMonitor(PATIENCE)

    assert checks_until_hung(watch) == 3
    assert watch.verdict == "nothing came from it for 6 seconds"


@pytest.mark.parametrize("heard", [beat(1, busy=False), DONE])
def test_whatever_comes_breaks_the_silence(heard: WorkerEvent) -> None:
    watch = HeartbeatMonitor(PATIENCE)
    for _ in range(2):
        watch.check()

    watch.hear(heard)

    assert watch.verdict is None
    assert checks_until_hung(watch) == 3


def test_a_worker_busy_with_one_thing_is_stuck_however_often_it_beats() -> None:
    watch = HeartbeatMonitor(PATIENCE)
    watch.hear(beat(7, busy=True))
    checks = 0
    while watch.check():
        watch.hear(beat(7, busy=True))
        watch.hear(DONE)  # a save, say, which ends in a thread of its own
        checks += 1

    assert checks == 4
    assert watch.verdict == "it was busy with one piece of work for 10 seconds"


@pytest.mark.parametrize(("step", "busy"), [(1, True), (0, False)], ids=["busy with one thing after another", "idle"])
def test_a_worker_that_is_not_stuck_may_go_on_for_ever(step: int, busy: bool) -> None:
    watch = HeartbeatMonitor(PATIENCE)

    for number in range(100):
        watch.hear(beat(number * step, busy=busy))
        assert watch.check()


def test_a_worker_beats_until_it_is_told_to_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "_BEAT_SECONDS", 0.001)
    sent: queue.SimpleQueue[BeatEvent] = queue.SimpleQueue()

    heart = HeartbeatSender(sent.put, lambda: (4, True))

    heart.start()
    beats = [sent.get(timeout=30) for _ in range(3)]
    heart.stop()

    assert beats == 3 * [beat(4, busy=True)]
    while not sent.empty():
        sent.get()
    with pytest.raises(queue.Empty):
        sent.get(timeout=0.05)


def test_a_beat_has_what_the_sampler_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "_BEAT_SECONDS", 0.001)
    sent: queue.SimpleQueue[BeatEvent] = queue.SimpleQueue()
    status = SamplerStatus(requests=2, sequences=1)

    heart = HeartbeatSender(sent.put, lambda: (0, False), sampler=lambda: status)
    heart.start()
    first = sent.get(timeout=30)
    heart.stop()

    assert first.sampler == status
