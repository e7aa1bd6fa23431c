"""The TensorBoard report: the metrics of a run as event files.

It does not use ``SummaryWriter`` of the package. That class queues for a thread which dies on a disk error, and then
blocks its callers; and it names files by the second, so a run that restarts at once overwrites its last file.
"""

from __future__ import annotations

import os
import re
import struct
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from chockstone.checkpoints.stores.posix import ensure_directory
from chockstone.extras import require
from chockstone.trainers.reports.jsonl import append_whole
from chockstone.trainers.reports.reports import Level, StepRecord

_FILE_VERSION: Final = "brain.Event:2"
_FILE_NAME: Final = re.compile(r"events\.out\.tfevents\.(\d{10})\.")


class TensorBoard:
    """Writes one file per process in ``directory``. Discarded steps stay in their file, and TensorBoard hides them.

    Evaluations have the prefix ``evaluation/``. Samples and events are not written.
    """

    def __init__(self, directory: Path, *, clock: Callable[[], float] = time.time) -> None:
        """Raises ModuleNotFoundError with the package to install, before training starts."""
        self._messages, self._checksum = _load_package()
        self._directory = directory
        self._clock = clock
        self._descriptor: int | None = None

    def resume(self, step: int) -> None:
        ensure_directory(self._directory)
        self._descriptor = self._open_next()
        self._append(file_version=_FILE_VERSION)
        first_lost = step + 1 if step else 0  # a fresh start also hides an evaluation at step 0
        self._append(step=first_lost, session_log={"status": self._messages.SessionLog.START})

    def record(self, record: StepRecord) -> None:
        self._append_numbers(record.step, record.metrics)

    def evaluated(self, step: int, metrics: Mapping[str, float]) -> None:
        self._append_numbers(step, {f"evaluation/{name}": value for name, value in metrics.items()})

    def event(self, text: str, *, level: Level = "info") -> None:
        pass

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def _open_next(self) -> int:
        """Create a file whose name sorts after all others: TensorBoard reads files in this order."""
        taken = [int(name[1]) for path in self._directory.iterdir() if (name := _FILE_NAME.match(path.name))]
        stamp = max(int(self._clock()), max(taken, default=0) + 1)
        path = self._directory / f"events.out.tfevents.{stamp:010d}.chockstone"
        return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)

    def _append_numbers(self, step: int, numbers: Mapping[str, float]) -> None:
        values = [{"tag": name, "simple_value": value} for name, value in numbers.items()]
        self._append(step=step, summary={"value": values})

    def _append(self, **fields: Any) -> None:  # of the Event message
        assert self._descriptor is not None, "call resume first, and nothing after close"
        event = self._messages.Event(wall_time=self._clock(), **fields).SerializeToString()
        length = struct.pack("<Q", len(event))
        checksums = [struct.pack("<I", self._checksum(part)) for part in (length, event)]
        append_whole(self._descriptor, length + checksums[0] + event + checksums[1])


def _load_package() -> tuple[Any, Callable[[bytes], int]]:  # the messages are untyped
    require("train", "a TensorBoard file", packages=["tensorboardX"])
    from tensorboardX.proto import event_pb2
    from tensorboardX.record_writer import masked_crc32c

    return event_pb2, masked_crc32c
