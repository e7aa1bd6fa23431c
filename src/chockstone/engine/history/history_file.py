"""The history file of one run: a line per point, each with a checksum. Points are appended, and thinned by a rewrite.

A line is the XXH3 digest of its JSON in 16 hexadecimal digits, a space, the JSON and a newline. The first line says
which run the file belongs to. A line that cannot be read is skipped: it costs one point.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import orjson
import xxhash

from chockstone.checkpoints.stores.posix import fsync_directory
from chockstone.engine.history.points import HistoryPoint

VERSION: Final = 1
SUFFIX: Final = ".history"
_UNFINISHED: Final = ".unfinished"
_MAX_BYTES: Final = 64 << 20  # several times what a thinned history takes
_RUN: Final = re.compile(r"(?P<session>[A-Za-z0-9_-]{1,100})[:.]train[:.](?P<number>[0-9]{1,18})")


class HistoryTooNew(Exception):
    """A later version wrote the file. It is left as it is."""


@dataclass(slots=True)
class HistoryContents:
    birth: str | None = None  # of the run; None: the file is not there, or its first line is damaged
    points: list[HistoryPoint] = field(default_factory=list)  # in the order of their positions
    damaged_lines: int = 0
    size_bytes: int = 0
    header: bytes = b""  # the first line, which differs after each rewrite
    parsed_bytes: int = 0  # up to the end of the last line


class HistoryFile:
    """Every method reads or writes the disk: call it in a thread. One thread writes at a time."""

    def __init__(self, path: Path, run_id: str) -> None:
        self.path = path
        self._run_id = run_id

    def read(self, known: HistoryContents | None = None) -> HistoryContents:
        """What can be read of it; empty if it is not there. Raises HistoryTooNew, OSError.

        ``known``: what an earlier call returned. If the file only grew since, the rest alone is parsed.
        """
        try:
            with self.path.open("rb") as file:
                if known is not None and known.header and file.read(len(known.header)) == known.header:
                    file.seek(known.parsed_bytes)
                    return self._parse(file.read(_MAX_BYTES), after=known)
                file.seek(0)
                content = file.read(_MAX_BYTES + 1)
        except FileNotFoundError:
            return HistoryContents()
        if len(content) > _MAX_BYTES:
            return HistoryContents(damaged_lines=1, size_bytes=len(content))
        return self._parse(content, after=HistoryContents())

    def _parse(self, content: bytes, *, after: HistoryContents) -> HistoryContents:
        *lines, torn = content.split(b"\n")
        found = HistoryContents(
            after.birth,
            list(after.points),
            damaged_lines=bool(torn),
            size_bytes=after.parsed_bytes + len(content),
            header=after.header,
            parsed_bytes=after.parsed_bytes + len(content) - len(torn),
        )
        for number, line in enumerate(lines):
            record = _unpack(line)
            if number == 0 and not after.parsed_bytes and isinstance(record, dict) and "history" in record:
                if record["history"] != VERSION:
                    raise HistoryTooNew(f"{str(self.path)!r} is of version {record['history']!r}")
                if record.get("run_id") != self._run_id:
                    return HistoryContents(damaged_lines=1, size_bytes=len(content))  # of another run
                found.birth, found.header = str(record.get("birth", "")), line + b"\n"
                continue
            try:
                point = HistoryPoint.from_record(record)
            except ValueError:
                found.damaged_lines += 1
                continue
            if not found.points or point.position > found.points[-1].position:
                found.points.append(point)
        return found

    def append(self, points: Sequence[HistoryPoint], *, at_bytes: int, synced: bool) -> int:
        """Add points behind all others, and return the new size. ``at_bytes``: the size that the last write left.

        What another write left behind that, because the disk was full, is cut off. Raises OSError.
        """
        content = b"".join(_pack(point.to_record()) for point in points)
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            if os.fstat(descriptor).st_size != at_bytes:
                os.ftruncate(descriptor, at_bytes)
            _write(descriptor, content, at_bytes)
            if synced:
                os.fdatasync(descriptor)
        finally:
            os.close(descriptor)
        return at_bytes + len(content)

    def sync(self) -> None:
        """Make durable what was written. Raises OSError."""
        with suppress(FileNotFoundError):
            descriptor = os.open(self.path, os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.fdatasync(descriptor)
            finally:
                os.close(descriptor)

    def replace(self, points: Iterable[HistoryPoint], *, birth: str) -> int:
        """Write the file anew with these points, durable on return, and return its size. Raises OSError."""
        header = {"history": VERSION, "run_id": self._run_id, "birth": birth, "mark": secrets.token_hex(8)}
        content = b"".join([_pack(header), *(_pack(point.to_record()) for point in points)])
        self.path.parent.mkdir(parents=True, exist_ok=True)
        beside = self.path.with_name(self.path.name + _UNFINISHED)
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            _write(descriptor, content, 0)
            os.fdatasync(descriptor)
        finally:
            os.close(descriptor)
        beside.replace(self.path)
        fsync_directory(self.path.parent)
        return len(content)

    def delete(self) -> None:
        """Raises OSError."""
        for path in (self.path.with_name(self.path.name + _UNFINISHED), self.path):
            path.unlink(missing_ok=True)


class HistoryFiles:
    """The files of all runs, below one directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def of(self, run_id: str) -> HistoryFile:
        """Raises ValueError if no run can have this id, as one that leaves the directory."""
        found = _RUN.fullmatch(run_id)
        if found is None or run_id != f"{found['session']}:train:{found['number']}":
            raise ValueError(f"{run_id!r:.80} is not the id of a run")
        return HistoryFile(self._directory / f"{found['session']}.train.{found['number']}{SUFFIX}", run_id)

    def list_runs(self, *, written_before: float) -> list[str]:
        """The runs whose file was last written before this time, in seconds since 1970. Raises OSError."""
        run_ids = []
        try:
            with os.scandir(self._directory) as entries:
                for entry in entries:
                    found = _RUN.fullmatch(entry.name.removesuffix(SUFFIX))
                    if found is None or not entry.name.endswith(SUFFIX):
                        continue
                    with suppress(FileNotFoundError):  # it was deleted a moment ago
                        if entry.stat(follow_symlinks=False).st_mtime < written_before:
                            run_ids.append(f"{found['session']}:train:{found['number']}")
        except FileNotFoundError:
            return []
        return sorted(run_ids)


def _pack(record: dict[str, Any]) -> bytes:  # Any: plain JSON
    content = orjson.dumps(record)
    return b"%016x %b\n" % (xxhash.xxh3_64_intdigest(content), content)


def _unpack(line: bytes) -> object:
    """The JSON of a line; None if the line is damaged."""
    if line[16:17] != b" " or line[:16] != b"%016x" % xxhash.xxh3_64_intdigest(line[17:]):
        return None
    try:
        return orjson.loads(line[17:])
    except orjson.JSONDecodeError:
        return None


def _write(descriptor: int, content: bytes, at_bytes: int) -> None:
    """All of it: a system call may write less, as when the disk is nearly full."""
    written = 0
    while written < len(content):
        written += os.pwrite(descriptor, content[written:], at_bytes + written)
