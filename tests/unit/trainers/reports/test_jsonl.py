"""The files of a run: whole lines whenever it is killed, and after a resume only what was not lost."""

from __future__ import annotations

import json
import math
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chockstone.trainers.reports.jsonl import EVENTS, METRICS, SAMPLES, JsonLines, read_rows
from chockstone.trainers.reports.reports import StepRecord

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)


def record(step: int) -> StepRecord:
    samples = [{"sample_id": f"{step}-{number}", "reward": 0.5} for number in range(2)]
    return StepRecord(step, {"reward/mean": step / 10}, samples)


def live(directory: Path, *, since: int, until: int) -> None:
    """One life that has trained steps ``since`` + 1 … ``until`` when it ends."""
    report = JsonLines(directory, now=lambda: NOON)
    report.resume(since)
    for step in range(since + 1, until + 1):
        report.record(record(step))
    report.close()


def rows(path: Path) -> list[dict[str, Any]]:
    """By another reader than ours; fails at anything that is not a whole line of JSON."""
    content = path.read_text()
    assert content == "" or content.endswith("\n")
    return [json.loads(line, parse_constant=pytest.fail) for line in content.splitlines()]


def sample_ids(directory: Path) -> list[str]:
    return [row["sample_id"] for row in rows(directory / SAMPLES)]


def ids_of(*steps: int) -> list[str]:
    return [f"{step}-{number}" for step in steps for number in range(2)]


def test_what_is_told_stands_in_three_files(tmp_path: Path) -> None:
    report = JsonLines(tmp_path / "new" / "logs", now=lambda: NOON)

    report.event("hello", level="warning")
    report.resume(0)
    report.record(record(1))
    report.evaluated(1, {"reward/mean": 0.25})
    report.close()
    report.close()

    logs = tmp_path / "new" / "logs"
    assert rows(logs / METRICS) == [
        {"step": 1, "metrics": {"reward/mean": 0.1}},
        {"step": 1, "evaluation": {"reward/mean": 0.25}},
    ]
    assert rows(logs / SAMPLES) == [
        {"step": 1, "sample_id": "1-0", "reward": 0.5},
        {"step": 1, "sample_id": "1-1", "reward": 0.5},
    ]
    assert rows(logs / EVENTS) == [{"at": "2026-01-02T12:00:00+00:00", "level": "warning", "text": "hello"}]
    assert list(read_rows(logs / METRICS)) == rows(logs / METRICS)
    assert sorted(os.listdir(logs)) == sorted([METRICS, SAMPLES, EVENTS])


def test_a_record_is_in_its_files_when_the_call_returns(tmp_path: Path) -> None:
    report = JsonLines(tmp_path)
    report.resume(0)

    report.record(record(1))

    assert sample_ids(tmp_path) == ids_of(1)
    report.close()


def test_a_resume_drops_what_came_after_its_step_and_keeps_the_rest_byte_for_byte(tmp_path: Path) -> None:
    live(tmp_path, since=0, until=5)
    before = (tmp_path / SAMPLES).read_bytes()

    live(tmp_path, since=3, until=3)

    after = (tmp_path / SAMPLES).read_bytes()
    assert before.startswith(after) and sample_ids(tmp_path) == ids_of(1, 2, 3)
    assert [row["step"] for row in rows(tmp_path / METRICS)] == [1, 2, 3]


def test_the_ledger_of_several_lives_has_each_sample_once(tmp_path: Path) -> None:
    live(tmp_path, since=0, until=5)
    live(tmp_path, since=3, until=6)
    live(tmp_path, since=6, until=8)

    assert sample_ids(tmp_path) == ids_of(*range(1, 9))


def test_an_evaluation_that_came_late_is_dropped_by_its_step_not_by_its_place(tmp_path: Path) -> None:
    report = JsonLines(tmp_path)
    report.resume(0)
    report.evaluated(0, {})
    report.record(record(1))
    report.record(record(2))
    report.evaluated(1, {})
    report.evaluated(2, {})
    report.close()

    live(tmp_path, since=1, until=1)

    evaluated = [row["step"] for row in rows(tmp_path / METRICS) if "evaluation" in row]
    assert evaluated == [0, 1]


def test_a_fresh_start_drops_all_but_the_events_whatever_it_is(tmp_path: Path) -> None:
    live(tmp_path, since=0, until=2)
    (tmp_path / SAMPLES).write_bytes(b"not ours\nat all\n")
    report = JsonLines(tmp_path)
    report.event("before")
    report.close()

    live(tmp_path, since=0, until=1)

    assert sample_ids(tmp_path) == ids_of(1)
    assert [row["step"] for row in rows(tmp_path / METRICS)] == [1]
    assert [row["text"] for row in rows(tmp_path / EVENTS)] == ["before"]


def test_wherever_the_last_write_was_torn_the_next_life_goes_on_from_whole_lines(tmp_path: Path) -> None:
    live(tmp_path, since=0, until=2)
    whole = (tmp_path / SAMPLES).read_bytes()
    ends = [place for place, byte in enumerate(whole) if byte == ord("\n")]  # where a line has all but its newline

    for size in range(ends[-2], len(whole) + 1):
        (tmp_path / SAMPLES).write_bytes(whole[:size])
        live(tmp_path, since=2, until=3)

        assert sample_ids(tmp_path) == ids_of(1, 2)[: sum(end <= size for end in ends)] + ids_of(3)


def test_a_torn_event_is_dropped_too(tmp_path: Path) -> None:
    (tmp_path / EVENTS).write_text('{"at":"2026-01-02","level":"info","text":"whole"}\n{"at":"2026-')
    report = JsonLines(tmp_path)

    report.event("after")
    report.close()

    assert [row["text"] for row in rows(tmp_path / EVENTS)] == ["whole", "after"]


def test_damage_before_the_last_line_is_not_passed_over(tmp_path: Path) -> None:
    live(tmp_path, since=0, until=3)
    content = (tmp_path / SAMPLES).read_bytes().replace(b'{"step":2', b"?", 1)
    (tmp_path / SAMPLES).write_bytes(content)

    with pytest.raises(ValueError, match=r"line 3 of '.*samples.jsonl' is not JSON"):
        JsonLines(tmp_path).resume(3)

    assert (tmp_path / SAMPLES).read_bytes() == content


def test_killed_while_it_cuts_it_leaves_the_file_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    live(tmp_path, since=0, until=4)
    before = (tmp_path / SAMPLES).read_bytes()

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", die)
        with pytest.raises(KeyboardInterrupt):
            JsonLines(tmp_path).resume(2)
    assert (tmp_path / SAMPLES).read_bytes() == before

    live(tmp_path, since=2, until=3)
    assert sample_ids(tmp_path) == ids_of(1, 2, 3)


@contextmanager
def files_of_at_most(size_bytes: int) -> Iterator[None]:
    usual = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, usual[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, usual)


def test_a_disk_that_takes_only_a_part_keeps_none_of_it(tmp_path: Path) -> None:
    report = JsonLines(tmp_path)
    report.resume(0)
    report.record(record(1))

    with files_of_at_most((tmp_path / SAMPLES).stat().st_size + 20), pytest.raises(OSError, match="File too large"):
        report.record(record(2))

    assert sample_ids(tmp_path) == ids_of(1)
    assert [row["step"] for row in rows(tmp_path / METRICS)] == [1]  # a step with metrics has its samples
    report.record(record(2))
    assert sample_ids(tmp_path) == ids_of(1, 2)
    report.close()


def test_numbers_that_json_does_not_know_are_null_and_numpys_are_numbers(tmp_path: Path) -> None:
    report = JsonLines(tmp_path)
    report.resume(0)

    report.record(StepRecord(1, {"nan": math.nan, "inf": math.inf, "numpy": float(np.float32(0.5))}))
    report.record(StepRecord(2, {"numpy": np.float32(0.5)}))  # type: ignore[dict-item]
    report.close()

    first, second = rows(tmp_path / METRICS)
    assert first["metrics"] == {"nan": None, "inf": None, "numpy": 0.5}
    assert second["metrics"] == {"numpy": 0.5}


def test_rows_can_be_read_while_they_are_written_and_there_are_none_without_a_file(tmp_path: Path) -> None:
    (tmp_path / METRICS).write_text('{"step":1}\n{"step":')

    assert list(read_rows(tmp_path / METRICS)) == [{"step": 1}]
    assert list(read_rows(tmp_path / "absent.jsonl")) == []
