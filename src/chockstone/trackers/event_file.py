"""Event files of TensorBoard: appended record by record, readable by TensorBoard at any time.

It does not use ``SummaryWriter`` of tensorboardX. That class queues for a thread which dies on a disk error, and then
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

from chockstone.checkpoints.stores.posix import append_whole, ensure_directory
from chockstone.extras import require

_FILE_VERSION: Final = "brain.Event:2"
_FILE_NAME: Final = re.compile(r"events\.out\.tfevents\.(\d{10})\.")
_TEXT_PLUGIN: Final = "text"


class EventFile:
    """One new file in ``directory``. Each record is one write: a killed process leaves at most the last one torn."""

    def __init__(self, directory: Path, *, extra: str, clock: Callable[[], float] = time.time) -> None:
        """Creates nothing before ``open``. Raises ExtraMissing, naming ``extra``, without tensorboardX."""
        self._messages, self._checksum = _load_package(extra)
        self._directory = directory
        self._clock = clock
        self._descriptor: int | None = None

    def open(self, *, first_lost_step: int | None = None) -> None:
        """Create the file. TensorBoard hides events of earlier files from ``first_lost_step`` on; None: hides none."""
        ensure_directory(self._directory)
        self._descriptor = self._open_next()
        self._append(self._clock(), file_version=_FILE_VERSION)
        if first_lost_step is not None:
            started = {"status": self._messages.SessionLog.START}
            self._append(self._clock(), step=first_lost_step, session_log=started)

    def add_numbers(self, step: int, numbers: Mapping[str, float], *, at: float | None = None) -> None:
        values = [{"tag": name, "simple_value": value} for name, value in numbers.items()]
        self._append(self._clock() if at is None else at, step=step, summary={"value": values})

    def add_text(self, step: int, tag: str, text: str, *, at: float | None = None) -> None:
        """``text`` is Markdown on the page Text of TensorBoard."""
        value = {
            "tag": f"{tag}/text_summary",
            "metadata": {"plugin_data": {"plugin_name": _TEXT_PLUGIN}},
            "tensor": {
                "dtype": "DT_STRING",
                "string_val": [text.encode()],
                "tensor_shape": {"dim": [{"size": 1}]},
            },
        }
        self._append(self._clock() if at is None else at, step=step, summary={"value": [value]})

    def close(self) -> None:
        """May be called again; nothing is added after it."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def _open_next(self) -> int:
        """Create a file whose name sorts after all others: TensorBoard reads files in this order."""
        taken = [int(name[1]) for path in self._directory.iterdir() if (name := _FILE_NAME.match(path.name))]
        stamp = max(int(self._clock()), max(taken, default=0) + 1)
        path = self._directory / f"events.out.tfevents.{stamp:010d}.chockstone"
        return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)

    def _append(self, at: float, **fields: Any) -> None:  # Any: fields of the Event message
        assert self._descriptor is not None, "call open first, and nothing after close"
        event = self._messages.Event(wall_time=at, **fields).SerializeToString()
        length = struct.pack("<Q", len(event))
        checksums = [struct.pack("<I", self._checksum(part)) for part in (length, event)]
        append_whole(self._descriptor, length + checksums[0] + event + checksums[1])


def _load_package(extra: str) -> tuple[Any, Callable[[bytes], int]]:  # Any: the messages are untyped
    require(extra, "a TensorBoard file", packages=["tensorboardX"])
    from tensorboardX.proto import event_pb2
    from tensorboardX.record_writer import masked_crc32c

    return event_pb2, masked_crc32c
