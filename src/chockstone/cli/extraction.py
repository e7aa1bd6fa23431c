"""Extractions: what ``export`` does and says."""

from __future__ import annotations

from pathlib import Path

from chockstone.checkpoints.export import choose_members, export_members
from chockstone.cli.targets import Target
from chockstone.cli.terminal import bytes_bar, print_json, print_line
from chockstone.cli.words import printable, spell_count, spell_size


def export_target(target: Target, directory: str, *, members: list[str], as_json: bool) -> None:
    with target.open() as archive:
        total = sum(member.size for member in choose_members(archive, members))
        with bytes_bar(target.name, total) as on_bytes:
            written = export_members(archive, Path(directory), members=members, on_bytes=on_bytes)
    if as_json:
        files = [{"name": member.name, "size_bytes": member.size} for member in written]
        print_json({"name": target.name, "directory": str(Path(directory).absolute()), "members": files})
        return
    for member in written:
        print_line(f"{spell_size(member.size):>10}  {printable(member.name)}")
    print_line(f"{spell_count(len(written), 'file')}, {spell_size(total)}, verified, in {printable(directory)}")
