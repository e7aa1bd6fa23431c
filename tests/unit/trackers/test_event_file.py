"""Event files, read as TensorBoard reads them. Those of a trainer are in tests/unit/trainers/reports."""

from __future__ import annotations

from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from chockstone.trackers.event_file import EventFile


def test_numbers_and_texts_are_shown_with_their_own_times(tmp_path: Path) -> None:
    file = EventFile(tmp_path, extra="tensorboard", clock=lambda: 1_800_000_000.0)
    file.open()
    file.add_numbers(3, {"loss": 0.5}, at=1_800_000_007.0)
    file.add_text(4, "checkpoints/weights", "tinker://a/weights/b", at=1_800_000_009.0)
    file.close()
    file.close()

    shown = EventAccumulator(str(tmp_path))
    shown.Reload()

    (number,) = shown.Scalars("loss")
    (text,) = shown.Tensors("checkpoints/weights/text_summary")
    assert (number.step, number.value, number.wall_time) == (3, 0.5, 1_800_000_007.0)
    assert (text.step, text.wall_time) == (4, 1_800_000_009.0)
    assert text.tensor_proto.string_val == [b"tinker://a/weights/b"]


def test_a_file_that_hides_nothing_keeps_all_steps_of_earlier_ones(tmp_path: Path) -> None:
    for value in (1.0, 2.0):
        file = EventFile(tmp_path, extra="tensorboard", clock=lambda: 1_800_000_000.0)  # both in one second
        file.open()
        file.add_numbers(5, {"loss": value})
        file.close()

    shown = EventAccumulator(str(tmp_path))
    shown.Reload()

    assert [event.value for event in shown.Scalars("loss")] == [1.0, 2.0]
