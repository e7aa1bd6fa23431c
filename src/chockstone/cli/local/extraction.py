"""Extracts an archive into a directory, converts it, or merges it into its base model (``export``)."""

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
    from chockstone.backends.export.gguf.tensors import NumberType
    from chockstone.integrations.formats.exporting import TargetFormat


@dataclass(frozen=True, slots=True)
class Extraction:
    """``export`` without further options. No ``members``: all of them."""

    members: list[str]


@dataclass(frozen=True, slots=True)
class Merging:
    """What ``--merge`` and its options ask for."""

    base: str


@dataclass(frozen=True, slots=True)
class GgufExport:
    """What ``--to gguf`` and its options ask for. ``number_type`` None: that of the base model."""

    base: str
    number_type: NumberType | None
    with_tokenizer: bool


@dataclass(frozen=True, slots=True)
class Conversion:
    """What ``--to torch``, ``safetensors``, ``dcp`` or ``hf`` and its options ask for."""

    to: TargetFormat
    part: str | None = None
    shard_bytes: int | None = None


ExportTask = Extraction | Merging | GgufExport | Conversion


def write_target(target: CommandTarget, place: str, task: ExportTask, *, as_json: bool) -> None:
    """Write the checkpoint to ``place``, which must not exist, and print what was written."""
    match task:
        case Extraction(members):
            export_target(target, place, members=members, as_json=as_json)
        case Merging(base):
            merge_target(target, place, base=base, as_json=as_json)
        case GgufExport():
            gguf_target(target, place, task, as_json=as_json)
        case Conversion():
            convert_target(target, place, task, as_json=as_json)


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


def gguf_target(target: CommandTarget, place: str, task: GgufExport, *, as_json: bool) -> None:
    """Write the base model with the checkpoint merged into it as one GGUF file."""
    require("gguf", "an export to GGUF")
    from chockstone.backends.export.gguf.export import GgufOptions, export_gguf  # late: brings torch

    options = GgufOptions(task.number_type, with_tokenizer=task.with_tokenizer)
    with target.open() as archive:
        report = export_gguf(
            archive,
            Path(task.base),
            Path(place),
            options,
            progress=lambda what, total_bytes: bytes_bar(f"{target.name}: {what}", total_bytes),
        )
    if as_json:
        facts = {"to": "gguf", "base": task.base, "architecture": report.architecture, "type": report.number_type}
        entry = {"name": Path(place).name, "size_bytes": report.size_bytes, "tensors": report.tensors}
        document = {"name": target.name, "path": str(Path(place).absolute()), **facts, "files": [entry]}
        print_json({**document, "notes": list(report.notes)})
        return
    for note in report.notes:
        print_line(printable(note))
    print_line(
        f"{printable(task.base)} with the checkpoint merged in, as {report.architecture} in {report.number_type}: "
        f"{format_count(report.tensors, 'tensor')}, {format_size(report.size_bytes)}, verified, in {printable(place)}"
    )


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
