"""Attempts of one task: where Flyte puts them, and checkpoints made as flytekit makes them."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from typing import Any

from flytekit.core.checkpointer import SyncCheckpoint

from chockstone.integrations.flyte import FlyteCheckpoint, Options
from chockstone.integrations.flyte.layouts import LEAF, shard, unique_id


@dataclass(frozen=True, slots=True)
class Root:
    uri: str

    def path(self, attempt: int, stem: str = "feda4e266c748463a97d-n0") -> str:
        uid = unique_id(f"{stem}-{attempt}")
        return f"{self.uri}/{shard(uid)}/{uid}/{LEAF}"

    def attempt(self, number: int, *, prev: str | int | None = -1, **options: Any) -> FlyteCheckpoint:
        """Attempt ``number`` as the platform starts it; its previous one is the one before unless told otherwise."""
        if prev == -1:
            prev = number - 1 if number else None
        src = self.path(prev) if isinstance(prev, int) else prev
        return FlyteCheckpoint(checkpoint_dest=self.path(number), checkpoint_src=src, options=Options(**options))


def flyte_native(work: str, *, dest: str, src: str | None = None, content: bytes = b"") -> bytes:
    """``read`` or ``write`` of flytekit's own checkpoint; S3 in a process of its own: it leaves connections open."""
    if not dest.startswith("s3"):
        checkpoint = SyncCheckpoint(checkpoint_dest=dest, checkpoint_src=src)
        try:
            return checkpoint.read() or b"" if work == "read" else checkpoint.write(content) or b""
        finally:
            checkpoint._td.cleanup()  # or it complains if the collector comes first
    call = "sys.stdout.buffer.write(cp.read())" if work == "read" else "cp.write(sys.stdin.buffer.read())"
    code = f"""
import sys
from flytekit.core.checkpointer import SyncCheckpoint
cp = SyncCheckpoint(checkpoint_dest={dest!r}, checkpoint_src={src!r})
{call}
"""
    done = subprocess.run([sys.executable, "-c", code], input=content, capture_output=True, timeout=120)
    if done.returncode:
        raise RuntimeError(done.stderr.decode()[-2000:])
    return done.stdout
