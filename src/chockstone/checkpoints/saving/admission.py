"""Admission: checks quota and free space for an archive of known size before its first byte is written."""

from __future__ import annotations

from dataclasses import dataclass

from chockstone.checkpoints.errors import AdmissionRefused
from chockstone.checkpoints.stores.store import Store


@dataclass(frozen=True, slots=True)
class Admission:
    """Limits on stored bytes. A save that exceeds one raises AdmissionRefused before its first byte is written."""

    quota_bytes: int | None = None  # of all archives below the checkpointer's prefix
    reserve_bytes: int = 0  # of the disk, to be left free for others
    allowance_bytes: int | None = None  # for one archive alone, where the caller has counted the others

    def check(self, store: Store, *, prefix: str, name: str, size: int) -> None:
        """Raise AdmissionRefused if ``size`` more bytes do not fit. An archive to be replaced is not counted."""
        if self.allowance_bytes is not None and size > self.allowance_bytes:
            raise AdmissionRefused(
                f"checkpoint {name!r} needs {size} bytes and its allowance is {max(self.allowance_bytes, 0)}. "
                "Delete checkpoints that are not needed any more, or raise the quota.",
                needed_bytes=size,
            )
        free = store.free_bytes()
        if free is not None and size + self.reserve_bytes > free:
            raise AdmissionRefused(
                f"checkpoint {name!r} needs {size} bytes and {store.url} has {free} free, of which "
                f"{self.reserve_bytes} are reserved. Free space, or remove old ones with `chockstone checkpoints gc`.",
                needed_bytes=size,
            )
        if self.quota_bytes is None:
            return
        used = sum(entry.size for entry in store.entries(prefix) if entry.name != name)
        if used + size > self.quota_bytes:
            raise AdmissionRefused(
                f"checkpoint {name!r} needs {size} bytes and its quota of {self.quota_bytes} has {used} in use. "
                "Remove old ones with `chockstone checkpoints gc`, or raise the quota.",
                needed_bytes=size,
            )
