"""Several reports as one: each is told everything, and one that fails harms nobody."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from chockstone.trainers.reports.reports import Level, Reports, StepRecord, read_saved_text, saved_text


class Notebook:
    """Notes what it is told, in order, and raises at what it is told to."""

    def __init__(self, *raises_at: str) -> None:
        self.notes: list[object] = []
        self._raises_at = raises_at

    def _note(self, call: str, *what: object) -> None:
        self.notes.append((call, *what))
        if call in self._raises_at:
            raise OSError(f"no {call} today")

    def resume(self, step: int) -> None:
        self._note("resume", step)

    def record(self, record: StepRecord) -> None:
        self._note("record", record.step)

    def evaluated(self, step: int, metrics: Mapping[str, float]) -> None:
        self._note("evaluated", step, metrics)

    def event(self, text: str, *, level: Level = "info") -> None:
        self._note("event", text, level)

    def close(self) -> None:
        self._note("close")


LEFT_OUT = ("event", "Notebook failed and was removed: OSError: no record today", "error")


def test_each_is_told_everything_in_order() -> None:
    first, second = Notebook(), Notebook()
    reports = Reports([first, second])

    reports.resume(3)
    reports.record(StepRecord(4, {}))
    reports.evaluated(4, {"reward/mean": 0.5})
    reports.event("careful", level="warning")
    reports.close()

    assert first.notes == second.notes
    assert first.notes == [
        ("resume", 3),
        ("record", 4),
        ("evaluated", 4, {"reward/mean": 0.5}),
        ("event", "careful", "warning"),
        ("close",),
    ]


@pytest.mark.parametrize("place", [0, 1, 2])
def test_one_that_raises_is_named_to_the_others_once_and_closed_and_left_out(
    place: int, caplog: pytest.LogCaptureFixture
) -> None:
    broken, others = Notebook("record"), [Notebook(), Notebook()]
    reports = Reports([*others[:place], broken, *others[place:]])

    reports.record(StepRecord(1, {}))
    reports.record(StepRecord(2, {}))

    assert broken.notes == [("record", 1), ("close",)]
    for each in others:
        assert sorted(map(str, each.notes)) == sorted(map(str, [("record", 1), ("record", 2), LEFT_OUT]))
    assert "OSError: no record today" in caplog.text  # with its traceback


def test_one_that_cannot_take_the_bad_news_is_left_out_as_well() -> None:
    broken, speechless, well = Notebook("record"), Notebook("event"), Notebook()
    reports = Reports([broken, speechless, well])

    reports.record(StepRecord(1, {}))
    reports.record(StepRecord(2, {}))

    assert speechless.notes == [LEFT_OUT, ("close",)]
    assert [note for note in well.notes if note[0] == "record"] == [("record", 1), ("record", 2)]  # type: ignore[index]
    assert len([note for note in well.notes if note[0] == "event"]) == 2  # type: ignore[index]


def test_when_all_have_failed_training_goes_on_and_the_log_knows(caplog: pytest.LogCaptureFixture) -> None:
    reports = Reports([Notebook("record", "close")])

    reports.record(StepRecord(1, {}))
    reports.record(StepRecord(2, {}))
    reports.close()

    assert caplog.text.count("Traceback") == 1


def test_a_close_that_fails_does_not_keep_the_others_open_and_is_told_to_those_who_still_listen() -> None:
    first, broken, last = Notebook(), Notebook("close"), Notebook()
    reports = Reports([first, broken, last])

    reports.close()
    reports.close()

    assert first.notes == [("close",)]
    assert [note[0] for note in last.notes] == ["event", "close"]  # type: ignore[index]


def test_an_interrupt_is_not_swallowed() -> None:
    class Interrupted(Notebook):
        def record(self, record: StepRecord) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Reports([Interrupted()]).record(StepRecord(1, {}))


def test_the_event_of_a_save_is_read_back_and_others_are_not() -> None:
    assert read_saved_text(saved_text(12, 3.456, "tinker://run/weights/step-00000012")) == (12, 3.5)
    assert read_saved_text("checkpoint step-00000003 failed") is None
