"""Checkpoints of a live server, as its store and its lists show them."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import tinker

from live import LiveServer


def archives(server: LiveServer, run_id: str) -> set[str]:
    """``kind/name`` of each archive that the store holds of a run."""
    root = server.data / "checkpoints" / run_id.replace(":", ".")
    return {path.relative_to(root).as_posix().removesuffix(".tar").rpartition(".")[0] for path in root.rglob("*.tar")}


def archive_path(server: LiveServer, path: str) -> Path:
    run_id, kind, name = path.removeprefix("tinker://").split("/")
    (found,) = (server.data / "checkpoints" / run_id.replace(":", ".") / kind).glob(f"{name}.*.tar")
    return found


def listed(rest: tinker.RestClient, run_id: str) -> set[str]:
    """``kind/name`` of each checkpoint that the run's list shows."""
    return {checkpoint.checkpoint_id for checkpoint in rest.list_checkpoints(run_id).result().checkpoints}


def entry(rest: tinker.RestClient, path: str) -> Any:
    """The checkpoint as its run's list shows it."""
    run_id = path.removeprefix("tinker://").split("/")[0]
    found = rest.list_checkpoints(run_id).result().checkpoints
    return next(checkpoint for checkpoint in found if checkpoint.tinker_path == path)


def url_of(path: str, *more: str) -> str:
    """Relative to ``/api/v1/``."""
    run_id, kind, name = path.removeprefix("tinker://").split("/")
    return "/".join(("training_runs", run_id, "checkpoints", kind, name, *more))


@contextmanager
def catalog_of(server: LiveServer) -> Iterator[sqlite3.Connection]:
    """To bring about in a moment what takes an hour."""
    connection = sqlite3.connect(server.data / "catalog.sqlite3", timeout=10, isolation_level=None)
    try:
        yield connection
    finally:
        connection.close()


def signed_url(http: httpx.Client, path: str) -> str:
    answer = http.get(url_of(path, "archive"))
    assert answer.status_code == 302, answer.text
    return answer.headers["location"]


def flip_a_byte(archive: Path) -> None:
    """In the middle, where tensors are."""
    with archive.open("r+b") as file:
        file.seek(archive.stat().st_size // 2)
        [byte] = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte ^ 0xFF]))
