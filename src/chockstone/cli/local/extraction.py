"""Extracts an archive into a directory, converts it, or merges its adapter into a base model (``export``)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from chockstone.checkpoints.restoring.export import choose_members, export_members
from chockstone.cli.local.targets import CommandTarget
from chockstone.cli.output.formatting import format_count, format_size, printable
from chockstone.cli.output.terminal import bytes_bar, print_json, print_line
from chockstone.extras import require

if TYPE_CHECKING:
    from chockstone.integrations.formats.exporting import TargetFormat


def export_target(target: CommandTarget, directory: str, *, members: list[str], as_json: bool) -> None:
    with target.open() as archive:
        total = sum(member.size for member in choose_members(archive, members))
        with bytes_bar(target.name, total) as on_bytes:
            written = export_members(archive, Path(directory), members=members, on_bytes=on_bytes)
    if as_json:
        files = [{"name": member.name, "size_bytes": member.size} for member in written]
        print_json({"name": target.name, "directory": str(Path(directory).absolute()), "members": files})
        return
    for member in written:
        print_line(f"{format_size(member.size):>10}  {printable(member.name)}")
    print_line(f"{format_count(len(written), 'file')}, {format_size(total)}, verified, in {printable(directory)}")


def merge_target(target: CommandTarget, directory: str, *, base: str, as_json: bool) -> None:
    """Write the base model with the adapter of the checkpoint folded in."""
    require("server", "an export with --base")
    from chockstone.backends.export.merge import merge_archive  # late: brings torch

    total_bytes = sum(file.stat().st_size for file in Path(base).glob("*.safetensors"))  # what comes out is as large
    with target.open() as archive, bytes_bar(target.name, total_bytes) as on_bytes:
        merge_archive(archive, Path(base), Path(directory), on_bytes=on_bytes)
    files = sorted((file.relative_to(directory).as_posix(), file.stat().st_size) for file in _files(Path(directory)))
    if as_json:
        entries = [{"name": name, "size_bytes": size_bytes} for name, size_bytes in files]
        print_json({"name": target.name, "directory": str(Path(directory).absolute()), "base": base, "files": entries})
        return
    for name, size_bytes in files:
        print_line(f"{format_size(size_bytes):>10}  {printable(name)}")
    total = format_size(sum(size_bytes for _, size_bytes in files))
    print_line(
        f"{printable(base)} with the adapter folded in: {format_count(len(files), 'file')}, {total}, "
        f"in {printable(directory)}"
    )


@dataclass(frozen=True, slots=True)
class Conversion:
    """What ``--to`` and its options ask for."""

    to: TargetFormat
    part: str | None = None
    shard_bytes: int | None = None


def convert_target(target: CommandTarget, place: str, conversion: Conversion, *, as_json: bool) -> None:
    """Write the state of the checkpoint as files that another program reads."""
    require("torch", f"an export to {conversion.to}")
    from chockstone.integrations.formats.exporting import SHARD_BYTES, export_checkpoint  # late: brings numpy

    with target.open() as archive, bytes_bar(target.name, archive.size) as on_bytes:
        exported = export_checkpoint(
            archive,
            Path(place),
            conversion.to,
            part=conversion.part,
            shard_bytes=conversion.shard_bytes or SHARD_BYTES,
            on_bytes=on_bytes,
        )
    if as_json:
        entries = [{"name": name, "size_bytes": size_bytes} for name, size_bytes in exported.files]
        document = {"name": target.name, "path": str(Path(place).absolute()), "to": conversion.to, "files": entries}
        print_json({**document, "notes": exported.notes})
        return
    for name, size_bytes in exported.files:
        print_line(f"{format_size(size_bytes):>10}  {printable(name)}")
    for note in exported.notes:
        print_line(printable(note))
    total = format_size(sum(size_bytes for _, size_bytes in exported.files))
    print_line(f"{format_count(len(exported.files), 'file')}, {total}, verified, in {printable(place)}")


def _files(directory: Path) -> Iterator[Path]:
    return (path for path in directory.rglob("*") if path.is_file())
