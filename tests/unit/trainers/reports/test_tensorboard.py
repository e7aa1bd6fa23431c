"""Event files, read as TensorBoard reads them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from chockstone.trainers.reports.reports import StepRecord
from chockstone.trainers.reports.tensorboard import TensorBoard


def shown(directory: Path) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard would show: (step, value) for each name."""
    accumulator = EventAccumulator(str(directory), size_guidance={"scalars": 0})
    accumulator.Reload()
    return {
        tag: [(event.step, event.value) for event in accumulator.Scalars(tag)] for tag in accumulator.Tags()["scalars"]
    }


def live(directory: Path, *, since: int, until: int, reward: float = 0.5) -> TensorBoard:
    """One life, not closed: it was killed."""
    report = TensorBoard(directory, clock=lambda: 1_700_000_000.0)  # all lives in one second
    report.resume(since)
    for step in range(since + 1, until + 1):
        report.record(StepRecord(step, {"reward/mean": reward}))
    return report


def test_metrics_and_evaluations_are_shown_as_soon_as_they_are_told(tmp_path: Path) -> None:
    report = TensorBoard(tmp_path / "new" / "board")
    report.resume(0)

    report.evaluated(0, {"reward/mean": 0.25})
    report.record(StepRecord(1, {"reward/mean": 0.5, "time/train": 2.0}, samples=[{"sample_id": "a"}]))
    report.record(StepRecord(2, {"reward/mean": 0.75}))
    report.event("said to others")

    assert shown(tmp_path / "new" / "board") == {
        "evaluation/reward/mean": [(0, 0.25)],
        "reward/mean": [(1, 0.5), (2, 0.75)],
        "time/train": [(1, 2.0)],
    }
    report.close()
    report.close()


def test_what_a_lost_life_told_after_the_resumed_step_is_not_shown(tmp_path: Path) -> None:
    first = live(tmp_path, since=0, until=5, reward=0.25)
    second = live(tmp_path, since=3, until=4, reward=0.5)

    assert shown(tmp_path) == {"reward/mean": [(1, 0.25), (2, 0.25), (3, 0.25), (4, 0.5)]}
    first.close()
    second.close()


def test_a_fresh_start_shows_nothing_of_what_was_there(tmp_path: Path) -> None:
    first = TensorBoard(tmp_path)
    first.resume(0)
    first.evaluated(0, {"reward/mean": 0.25})
    first.close()

    second = live(tmp_path, since=0, until=1)

    assert shown(tmp_path) == {"reward/mean": [(1, 0.5)], "evaluation/reward/mean": []}
    second.close()


def test_a_record_torn_by_a_kill_hides_nothing_of_the_next_life(tmp_path: Path) -> None:
    live(tmp_path, since=0, until=3, reward=0.25).close()
    (file,) = tmp_path.iterdir()
    os.truncate(file, file.stat().st_size - 5)

    live(tmp_path, since=2, until=4).close()

    assert shown(tmp_path) == {"reward/mean": [(1, 0.25), (2, 0.25), (3, 0.5), (4, 0.5)]}


def test_a_clock_that_was_set_back_does_not_change_the_order_of_lives(tmp_path: Path) -> None:
    live(tmp_path, since=0, until=3, reward=0.25).close()

    report = TensorBoard(tmp_path, clock=lambda: 1_000_000_000.0)
    report.resume(2)
    report.record(StepRecord(3, {"reward/mean": 0.5}))
    report.close()

    assert shown(tmp_path) == {"reward/mean": [(1, 0.25), (2, 0.25), (3, 0.5)]}


def test_without_the_package_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    monkeypatch.delitem(sys.modules, "tensorboardX.proto", raising=False)

    with pytest.raises(ModuleNotFoundError, match=r"pip install 'chockstone\[train\]'"):
        TensorBoard(tmp_path)
