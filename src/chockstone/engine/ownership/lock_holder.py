"""The lock holder: which server holds the lock of a data directory, as it recorded in the lock file.

The record only explains a refusal and shortens a wait; the lock itself decides. A process is known by its id, its
start time, and the boot and process namespace of its machine, so that no other process is taken for it.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson

from chockstone.engine.ownership.data_directory import LOCK

_LARGEST_BYTES: Final = 4096
_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
_NAMESPACE: Final = "/proc/self/ns/pid"
_ENDED: Final = "ZX"  # states of a process that has ended


@dataclass(frozen=True, slots=True)
class LockHolder:
    pid: int
    address: str  # where it listens
    is_stopping: bool


def record_holder(lock: int, *, address: str, is_stopping: bool = False) -> None:
    """Write into the lock file that this process holds it. ``lock`` is the descriptor that ``owned`` yielded."""
    with contextlib.suppress(OSError):  # a full disk, or a system without /proc: the next server waits instead
        record = {**_identity(os.getpid()), "address": address, "stopping": is_stopping}
        os.ftruncate(lock, os.pwrite(lock, orjson.dumps(record), 0))


def find_holder(data: Path) -> LockHolder | None:
    """The server that recorded itself in the lock file, if it runs on this machine; else None."""
    try:
        with open(data / LOCK, "rb") as file:
            record = orjson.loads(file.read(_LARGEST_BYTES))
        recorded = {name: record[name] for name in ("pid", "started", "boot", "namespace")}
        if recorded != _identity(int(record["pid"])):
            return None
        return LockHolder(int(record["pid"]), str(record["address"]), bool(record["stopping"]))
    except (OSError, ValueError, KeyError, TypeError):  # no record, one that is being written, or one of another system
        return None


def _identity(pid: int) -> dict[str, Any]:  # Any: plain JSON
    """Raises OSError where there is no such process, or no ``/proc``; ValueError if the process has ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    if fields[0] in _ENDED:
        raise ValueError(f"process {pid} has ended")
    return {
        "pid": pid,
        "started": int(fields[19]),
        "boot": _BOOT.read_text().strip(),
        "namespace": os.readlink(_NAMESPACE),
    }
