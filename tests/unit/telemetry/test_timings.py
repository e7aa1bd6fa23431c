from __future__ import annotations

from chockstone.telemetry.timings import RecentTimings, WorkTiming


def timing(number: int) -> WorkTiming:
    return WorkTiming("optim_step", number, number + 0.5, number + 1.0, sequence=number)


def test_the_newest_timings_of_a_key_are_kept_oldest_first() -> None:
    recent = RecentTimings(per_key=3)

    for number in range(10):
        recent.add("a", timing(number))
    recent.add("b", timing(99))

    assert [each.sequence for each in recent.of("a")] == [7, 8, 9]
    assert [each.sequence for each in recent.of("b")] == [99]
    assert recent.of("c") == []


def test_the_keys_that_were_used_last_are_kept() -> None:
    recent = RecentTimings(keys=2)

    for key in ("a", "b", "a", "c"):
        recent.add(key, timing(1))

    assert len(recent.of("a")) == 2
    assert recent.of("b") == []
    assert len(recent.of("c")) == 1
