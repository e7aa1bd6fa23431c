from __future__ import annotations

from pathlib import Path

from chockstone.console.recent_points import KEPT, RecentPoints
from chockstone.engine.history.points import Measurement
from chockstone.engine.history.step_history import StepHistory

RUN = "s:train:0"


def measured(first: int, count: int) -> list[Measurement]:
    return [Measurement(float(step), step, {"loss": float(step)}) for step in range(first, first + count)]


async def test_the_newest_points_are_kept_and_extended(tmp_path: Path) -> None:
    history = StepHistory(tmp_path)
    recent = RecentPoints(history)
    await history.record_client(RUN, measured(0, KEPT + 50), owner="ann")
    first = await recent.of(RUN, seen=1)
    await history.record_client(RUN, measured(KEPT + 50, 10), owner="ann")

    same = await recent.of(RUN, seen=1)
    more = await recent.of(RUN, seen=2)
    await history.stop()

    assert [point.step for point in first] == list(range(50, KEPT + 50))
    assert same == first
    assert [point.step for point in more] == list(range(60, KEPT + 60))


async def test_a_run_without_points_is_looked_at_again(tmp_path: Path) -> None:
    history = StepHistory(tmp_path)
    recent = RecentPoints(history)

    assert await recent.of(RUN, seen=1) == []
    await history.record_client(RUN, measured(0, 1), owner="ann")
    assert len(await recent.of(RUN, seen=1)) == 1
    await history.stop()
