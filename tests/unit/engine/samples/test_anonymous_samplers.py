from __future__ import annotations

from chockstone.engine.config import EngineLimits
from chockstone.engine.samples.anonymous_samplers import AnonymousSamplers


class Clock:
    def __init__(self) -> None:
        self.time = 0.0

    def __call__(self) -> float:
        return self.time


def make(clock: Clock, *, keep: int = 2) -> AnonymousSamplers:
    return AnonymousSamplers(EngineLimits(anonymous_samplers=keep, anonymous_idle_seconds=10), monotonic=clock)


def test_the_newest_and_those_used_lately_stay() -> None:
    clock = Clock()
    samplers = make(clock)
    for number in range(5):
        samplers.made("run", f"s{number}")
    clock.time = 20
    samplers.used("s1")

    assert samplers.take_left_behind() == ["s0", "s2"]
    assert samplers.take_left_behind() == []
    clock.time = 40
    assert samplers.take_left_behind() == ["s1"]


def test_nothing_goes_before_its_time() -> None:
    clock = Clock()
    samplers = make(clock)
    for number in range(5):
        samplers.made("run", f"s{number}")
    clock.time = 10

    assert samplers.take_left_behind() == []


def test_runs_are_counted_apart() -> None:
    clock = Clock()
    samplers = make(clock)
    for run in ("a", "b"):
        for number in range(2):
            samplers.made(run, f"{run}{number}")
    clock.time = 100

    assert samplers.take_left_behind() == []


def test_what_its_session_took_along_is_not_told_again() -> None:
    clock = Clock()
    samplers = make(clock, keep=1)
    for number in range(3):
        samplers.made("run", f"s{number}")
    samplers.forget(["s0", "unknown"])
    samplers.used("s0")
    clock.time = 100

    assert samplers.take_left_behind() == ["s1"]
