"""The CPU clock of a server: what the kernel counted for the process that serves, in nanoseconds."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from benchmarks.live.server import LiveServer


def cpu_seconds(server: LiveServer) -> float:
    """Of all threads that run. ``psutil`` has hundredths of a second, which is too coarse for a few steps."""
    total = 0
    for task in Path(f"/proc/{server.process.pid}/task").iterdir():
        with suppress(OSError):  # a thread that has just ended
            total += int((task / "schedstat").read_text().split()[0])
    return total / 1e9
