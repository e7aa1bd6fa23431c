"""Checkpoints of a live server, as its store and its lists show them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import httpx
import tinker

from chockstone.checkpoints import Store
from chockstone.checkpoints.errors import CheckpointMissing
from chockstone.checkpoints.stores.file_store import FileStore
from support.live import LiveServer


@dataclass(frozen=True)
class Stored:
    """An archive as it is in a server's store, whatever kind of store that is."""

    store: Store
    name: str

    @property
    def size(self) -> int:
        return self.store.stat(self.name).size

    def read_bytes(self) -> bytes:
        source = self.store.open(self.name)
        content = bytearray(source.size)
        source.read_into(0, memoryview(content))
        source.close()
        return bytes(content)

    def exists(self) -> bool:
        try:
            self.store.stat(self.name)
        except CheckpointMissing:
            return False
        return True

    def unlink(self) -> None:
        assert self.store.delete(self.name)

    def flip(self, part: float = 0.5) -> None:
        """Change a byte of it, that far into it; in the middle is where tensors are."""
        content = bytearray(self.read_bytes())
        content[int(len(content) * part)] ^= 0xFF
        self.put(content)

    def put(self, content: bytes | bytearray) -> None:
        """Have it hold something else."""
        content = bytearray(content)
        if isinstance(self.store, FileStore):
            self.store.path(self.name).write_bytes(content)
            return
        sink = self.store.begin(self.name, len(content))
        sink.write_at(0, memoryview(content))
        sink.commit(overwrite=True)


def archives(server: LiveServer, run_id: str) -> set[str]:
    """``kind/name`` of each archive that the store holds of a run."""
    folder = run_id.replace(":", ".")
    return {entry.name[len(folder) + 1 :].rpartition(".")[0] for entry in server.store.entries(folder)}


def archive_of(server: LiveServer, path: str) -> Stored:
    run_id, kind, name = path.removeprefix("tinker://").split("/")
    store, folder = server.store, f"{run_id.replace(':', '.')}/{kind}"
    (found,) = (each.name for each in store.entries(folder) if each.name.startswith(f"{folder}/{name}."))
    return Stored(store, found)


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


def signed_url(http: httpx.Client, path: str) -> str:
    answer = http.get(url_of(path, "archive"))
    assert answer.status_code == 302, answer.text
    return answer.headers["location"]
