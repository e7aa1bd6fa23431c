"""Commands that download a server's archives: ``download``, ``export`` and ``diff``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from chockstone.checkpoints.errors import ExportRefused
from chockstone.checkpoints.stores.file_source import open_file
from chockstone.cli.local.differences import compare_targets
from chockstone.cli.local.extraction import ExportTask, write_target
from chockstone.cli.local.targets import CommandTarget, find_archive
from chockstone.cli.output.exit_codes import ExitCode
from chockstone.cli.output.formatting import format_size, printable
from chockstone.cli.output.reporting import CommandFailed
from chockstone.cli.output.terminal import print_json, print_line
from chockstone.cli.remote.addresses import find_readable, is_address, route
from chockstone.cli.remote.client import Server
from chockstone.cli.remote.download import download, fetched, list_parts
from chockstone.wire.paths import TinkerPath


class DownloadInterrupted(CommandFailed):
    exit_code = ExitCode.INTERRUPTED


@contextmanager
def _explained_interruption(target: Path) -> Iterator[None]:
    """Say what an interrupted download leaves, if it leaves anything."""
    try:
        yield
    except KeyboardInterrupt:
        for part in list_parts(target):
            if size_bytes := part.stat().st_size:
                raise DownloadInterrupted(
                    f"interrupted: {format_size(size_bytes)} are kept in {str(part)!r}; "
                    f"the same command resumes the download"
                ) from None
            part.unlink()
        raise


def download_served(server: Server, path: TinkerPath, file: str, *, as_json: bool) -> None:
    with _explained_interruption(Path(file)):
        size_bytes = download(lambda: server.place(route(path, "archive")), Path(file), label=str(path))
    if as_json:
        print_json({"tinker_path": str(path), "file": str(Path(file).absolute()), "size_bytes": size_bytes})
    else:
        print_line(f"{format_size(size_bytes)}, verified, in {printable(file)}")


def export_served(server: Server, path: TinkerPath, place: str, task: ExportTask, *, as_json: bool) -> None:
    target = Path(place)
    if os.path.lexists(target):  # before the download, which may take long
        raise ExportRefused(f"{str(target)!r} exists already; name a place that does not")
    with (
        _explained_interruption(target),
        fetched(lambda: server.place(route(path, "archive")), target, label=str(path)) as part,
    ):
        write_target(CommandTarget(str(path), lambda: open_file(part)), place, task, as_json=as_json)


def compare_served(server: Server, before: str, after: str, *, as_json: bool) -> int:
    """Print what changed, and return the exit code. What a server has is downloaded, and gone again afterwards."""
    with (
        TemporaryDirectory(prefix="chockstone-diff-") as place,
        _found(server, before, Path(place, "before")) as old,
        _found(server, after, Path(place, "after")) as new,
    ):
        return compare_targets(old, new, as_json=as_json)


@contextmanager
def _found(server: Server, word: str, place: Path) -> Iterator[CommandTarget]:
    if not is_address(word):
        yield find_archive(word)
        return
    path = find_readable(server, word)
    with fetched(lambda: server.place(route(path, "archive")), place, label=str(path)) as part:
        yield CommandTarget(str(path), lambda: open_file(part))
