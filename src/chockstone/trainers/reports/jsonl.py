"""The JSON lines report: files with the metrics, the trained samples and the events of a run.

Each line is appended with one write, so a killed process leaves at most the last line torn.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import orjson

from chockstone.checkpoints.stores.posix import append_whole, ensure_directory, fsync_directory
from chockstone.trainers.reports.reports import Level, StepRecord

METRICS: Final = "metrics.jsonl"  # {"step", "metrics"} and {"step", "evaluation"}
SAMPLES: Final = "samples.jsonl"  # {"step", and the columns of ``sample_rows``}: each trained sample once
EVENTS: Final = "events.jsonl"  # {"at", "level", "text"} of all processes of the run

_FORMAT: Final = orjson.OPT_APPEND_NEWLINE | orjson.OPT_SERIALIZE_NUMPY


def utc_now() -> datetime:
    return datetime.now(UTC)


class JsonLines:
    """Writes three files in ``directory``. A number that is not finite becomes null.

    The samples of a step are written before its metrics, so a step with metrics has all its samples.
    """

    def __init__(self, directory: Path, *, now: Callable[[], datetime] = utc_now) -> None:
        self._directory = directory
        self._now = now
        self._descriptors: dict[str, int] = {}

    def resume(self, step: int) -> None:
        """Drop rows of later steps. Raises ValueError, and changes nothing, if a line before the last is not JSON.

        A fresh start renames existing files to ``NAME.old``.
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
        if name == EVENTS:  # which ``resume`` does not rewrite: remove a torn last line
            _rewrite(path, lambda _: True)
        return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the complete rows of a file, which another process may be writing. A missing file has no rows."""
    for _, row in _lines(path):
        yield row


def _lines(path: Path) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Yield each complete line with its newline, and its row."""
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
    """Keep the selected rows byte for byte and drop a torn line. After a kill the file is either the old or the new."""
    beside = path.with_name(path.name + ".new")
    with beside.open("wb") as file:
        file.writelines(line for line, row in _lines(path) if is_kept(row))
        file.flush()
        os.fsync(file.fileno())
    beside.rename(path)
