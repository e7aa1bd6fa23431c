from __future__ import annotations

from pathlib import Path

from chockstone.console.sparklines import HEIGHT, WIDTH, LossLine, Sparklines, draw
from chockstone.engine.history.points import Measurement
from chockstone.engine.history.step_history import StepHistory


def measured(*losses: float) -> list[Measurement]:
    return [Measurement(float(step), step, {"loss": loss}) for step, loss in enumerate(losses)]


def test_a_line_fills_its_box_and_falls_with_the_loss() -> None:
    places = [tuple(map(float, pair.split(","))) for pair in draw([3.0, 2.0, 1.0]).split()]

    assert [x for x, _ in places] == [0, WIDTH / 2, WIDTH]
    assert [y for _, y in places] == sorted(y for _, y in places)
    assert all(0 <= y <= HEIGHT for _, y in places)


def test_one_value_is_no_line_and_equal_values_are_a_flat_one() -> None:
    assert draw([]) == draw([1.0]) == ""
    assert len({pair.split(",")[1] for pair in draw([2.0, 2.0, 2.0]).split()}) == 1


async def test_a_history_is_read_again_when_the_run_has_trained_further_and_some_seconds_passed(tmp_path: Path) -> None:
    history = StepHistory(tmp_path)
    now = 0.0
    lines = Sparklines(history, monotonic=lambda: now)
    await history.record_client("s:train:0", measured(3.0, 2.0), owner="ann")
    first = await lines.of("s:train:0", step=1)
    await history.record_client("s:train:0", measured(1.0, 0.5), owner="ann")

    soon = await lines.of("s:train:0", step=2)
    now = 60.0
    idle = await lines.of("s:train:0", step=1)
    later = await lines.of("s:train:0", step=2)
    await history.stop()

    assert first.points and soon == idle == first
    assert (len(later.points.split()), first.last, later.last) == (4, 2.0, 0.5)


async def test_a_run_without_a_history_has_no_line(tmp_path: Path) -> None:
    history = StepHistory(tmp_path)

    assert await Sparklines(history).of("s:train:0", step=None) == LossLine("", None)
    await history.stop()
