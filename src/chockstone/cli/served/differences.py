"""Differences: what ``diff`` says where a server has one of the two checkpoints, or both."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from chockstone.checkpoints.file_source import open_file
from chockstone.cli.client import Server
from chockstone.cli.differences import compare_targets
from chockstone.cli.served.addresses import find_path, is_address, route
from chockstone.cli.served.download import fetched
from chockstone.cli.targets import Target, find_archive


def compare_served(server: Server, before: str, after: str, *, as_json: bool) -> int:
    """Print what changed, and return the exit code. What a server has is downloaded, and gone again afterwards."""
    with (
        TemporaryDirectory(prefix="chockstone-diff-") as place,
        _found(server, before, Path(place, "before")) as old,
        _found(server, after, Path(place, "after")) as new,
    ):
        return compare_targets(old, new, as_json=as_json)


@contextmanager
def _found(server: Server, word: str, place: Path) -> Iterator[Target]:
    if not is_address(word):
        yield find_archive(word)
        return
    path = find_path(word)
    with fetched(lambda: server.place(route(path, "archive")), place, label=str(path)) as part:
        yield Target(str(path), lambda: open_file(part))
