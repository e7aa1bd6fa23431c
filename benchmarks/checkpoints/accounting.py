"""Accounting: what the kernel says this process wrote, read and held."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes this process, all its threads included, has sent to and fetched from the disk so far."""

    read_bytes: int
    write_bytes: int

    def since(self, earlier: Traffic) -> Traffic:
        return Traffic(self.read_bytes - earlier.read_bytes, self.write_bytes - earlier.write_bytes)


def traffic() -> Traffic:
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return Traffic(read_bytes=int(fields["read_bytes"]), write_bytes=int(fields["write_bytes"]))


def resident_bytes() -> int:
    return _status_bytes("VmRSS")


def peak_resident_bytes() -> int:
    """The most memory held since the last ``reset_peak``."""
    return _status_bytes("VmHWM")


def reset_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def _status_bytes(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {field!r} line")
