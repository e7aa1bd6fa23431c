"""Checkpoints on a served loopback for commands to work on."""

from __future__ import annotations

from pathlib import Path

from chockstone.checkpoints import Archive
from chockstone.checkpoints.stores.file_source import open_file
from support.cli.loopback import Loopback


def fill(loopback: Loopback, *names: str, kind: str = "weights", **facts: object) -> tuple[str, list[str]]:
    """A run, and the paths of what was saved of it."""
    user = loopback.user()
    run_id = loopback.wait(user.run())
    return run_id, [loopback.wait(user.save(run_id, name, kind=kind, **facts)) for name in names]


def flip(path: Path) -> None:
    """A bit of the last tensor."""
    with Archive(open_file(path)) as archive:
        member = list(archive.members.values())[-1]
    content = bytearray(path.read_bytes())
    content[member.offset + member.size - 1] ^= 1
    path.unlink()
    path.write_bytes(content)


def paths_listed(loopback: Loopback) -> set[str]:
    return {entry["tinker_path"] for entry in loopback.json("checkpoints", "ls")["checkpoints"]}
