"""Differences: what ``diff`` says where a server has one of the two checkpoints, or both."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from chockstone.checkpoints.stores.file_source import open_file
from chockstone.cli.local.differences import compare_targets
from chockstone.cli.local.targets import CommandTarget, find_archive
from chockstone.cli.remote.addresses import find_path, is_address, route
from chockstone.cli.remote.client import Server
from chockstone.cli.remote.download import fetched


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
    path = find_path(word)
    with fetched(lambda: server.place(route(path, "archive")), place, label=str(path)) as part:
        yield CommandTarget(str(path), lambda: open_file(part))
