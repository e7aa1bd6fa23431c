"""JSON lines: the metrics, the ledger of trained samples, and the events of a run, as files for other programs.

A line is appended with one write, so a process that is killed leaves at most the last one torn.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import orjson

from chockstone.checkpoints.stores.posix import ensure_directory, fsync_directory
from chockstone.trainers.reports.appending import append_whole
from chockstone.trainers.reports.reports import Level, StepRecord

METRICS: Final = "metrics.jsonl"  # {"step", "metrics"} and {"step", "evaluation"}
SAMPLES: Final = "samples.jsonl"  # {"step", and what the trainer tells of a sample}: each trained sample once
EVENTS: Final = "events.jsonl"  # {"at", "level", "text"}; of all lives, also those that were lost

_FORMAT: Final = orjson.OPT_APPEND_NEWLINE | orjson.OPT_SERIALIZE_NUMPY


def utc_now() -> datetime:
    return datetime.now(UTC)


class JsonLines:
    """Three files in ``directory``. A number that is not finite is written as null.

    A step's samples are written before its metrics: a step that has metrics has all its samples.
    """

    def __init__(self, directory: Path, *, now: Callable[[], datetime] = utc_now) -> None:
        self._directory = directory
        self._now = now
        self._descriptors: dict[str, int] = {}

    def resume(self, step: int) -> None:
        """Raises ValueError, with the file as it was, if a line other than the last is not JSON.

        What is found by a fresh start is somebody's: it is not deleted, but has ``.old`` behind its name from then on.
        """
        ensure_directory(self._directory)
        for name in (SAMPLES, METRICS):
            path = self._directory / name
            if step == 0:
                with suppress(FileNotFoundError):
                    path.replace(path.with_name(path.name + ".old"))
            else:
                _rewrite(path, lambda row: row["step"] <= step)
        fsync_directory(self._directory)

    def record(self, record: StepRecord) -> None:
        self._append(SAMPLES, ({"step": record.step, **sample} for sample in record.samples))
        self._append(METRICS, [{"step": record.step, "metrics": dict(record.metrics)}])

    def evaluated(self, step: int, metrics: Mapping[str, float]) -> None:
        self._append(METRICS, [{"step": step, "evaluation": dict(metrics)}])

    def event(self, text: str, *, level: Level = "info") -> None:
        self._append(EVENTS, [{"at": self._now(), "level": level, "text": text}])

    def close(self) -> None:
        while self._descriptors:
            _, descriptor = self._descriptors.popitem()
            os.close(descriptor)

    def _append(self, name: str, rows: Iterable[Mapping[str, Any]]) -> None:
        if name not in self._descriptors:
            self._descriptors[name] = self._open(name)
        append_whole(self._descriptors[name], b"".join(orjson.dumps(row, option=_FORMAT) for row in rows))

    def _open(self, name: str) -> int:
        ensure_directory(self._directory)
        path = self._directory / name
        if name == EVENTS:  # resume leaves them alone
            _rewrite(path, lambda _: True)
        return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """The whole rows of a file, also of one that is being written; none if there is no file."""
    for _, row in _lines(path):
        yield row


def _lines(path: Path) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Each whole line with its newline, and the row in it."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        for number, line in enumerate(file, start=1):
            is_last = not line.endswith(b"\n")
            try:
                row = orjson.loads(line)
            except ValueError as error:
                if is_last:
                    return
                raise ValueError(
                    f"line {number} of {str(path)!r} is not JSON: {error}. Only a last line can be torn by a crash; "
                    "repair the file or move it away."
                ) from error
            yield (line + b"\n" if is_last else line), row


def _rewrite(path: Path, is_kept: Callable[[dict[str, Any]], bool]) -> None:
    """Leave the rows to keep, byte for byte, and no torn line. Killed at any point, the file is the old or the new."""
    beside = path.with_name(path.name + ".new")
    with beside.open("wb") as file:
        file.writelines(line for line, row in _lines(path) if is_kept(row))
        file.flush()
        os.fsync(file.fileno())
    beside.rename(path)
