from __future__ import annotations

from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from chockstone.trackers.tensorboard_tracker import TensorBoardTracker
from support.trackers import checkpoint, facts, points


def read(directory: Path) -> EventAccumulator:
    shown = EventAccumulator(str(directory), size_guidance={"scalars": 0, "tensors": 0})
    shown.Reload()
    return shown


def test_points_settings_and_checkpoints_are_shown(tmp_path: Path) -> None:
    tracker, run = TensorBoardTracker(tmp_path), facts()
    tracker.open(run)
    tracker.open(run)
    tracker.log(run, points(1, 4))
    tracker.saved(run, [checkpoint(2)])
    tracker.shut_down()

    shown = read(tmp_path / run.name)

    assert [(event.step, event.value) for event in shown.Scalars("loss")] == [(0, 1.0), (1, 2.0), (1, 3.0), (2, 4.0)]
    (settings,) = shown.Tensors("settings/text_summary")
    (saved,) = shown.Tensors("checkpoints/weights/text_summary")
    assert rb"| rank | 8 |" in settings.tensor_proto.string_val[0]
    assert saved.step == 2


def test_the_next_process_continues_the_run(tmp_path: Path) -> None:
    run = facts()
    for first, last in ((1, 2), (3, 4)):
        tracker = TensorBoardTracker(tmp_path, clock=lambda: 1_800_000_000.0)
        tracker.open(run)
        tracker.log(run, points(first, last))
        tracker.close(run.run_id)
        tracker.close(run.run_id)

    shown = read(tmp_path / run.name)

    assert [event.value for event in shown.Scalars("loss")] == [1.0, 2.0, 3.0, 4.0]
    assert len(shown.Tensors("settings/text_summary")) == 1


def test_markup_of_a_client_is_shown_as_text(tmp_path: Path) -> None:
    run = facts(metadata={"task": "<b>|x|\n# big"})
    tracker = TensorBoardTracker(tmp_path)
    tracker.open(run)
    tracker.shut_down()

    (settings,) = read(tmp_path / run.name).Tensors("settings/text_summary")

    assert rb"\<b\>\|x\| \# big" in settings.tensor_proto.string_val[0]
