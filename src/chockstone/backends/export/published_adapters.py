"""Published adapters: PEFT directories on disk that vLLM servers load, while somebody samples from them.

<directory>/chockstone-<digest of the archive>/    adapter_config.json, adapter_model.safetensors
<directory>/.lock                                  locked while a server uses the directory
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import re
import shutil
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from chockstone.backends.export.adapter_files import has_head, write_adapter
from chockstone.backends.export.load_errors import explain_load
from chockstone.checkpoints import Archive, Store
from chockstone.checkpoints.errors import CheckpointError
from chockstone.sampling.vllm.adapters import AdapterFiles

log = logging.getLogger(__name__)
_LOCK: Final = ".lock"
_OURS: Final = re.compile(r"chockstone-([0-9a-f]{64}|probe-[0-9a-f]{16})|\.export-[0-9a-f]{16}\.partial")


class DirectoryTaken(Exception):
    """Another server uses the directory."""


class PublishedAdapters:
    """For one event loop; disk work is done in threads. ``on_leaving`` is awaited before an adapter is deleted."""

    def __init__(
        self,
        store: Store,
        directory: Path,
        *,
        most: int,
        on_leaving: Callable[[str], Awaitable[None]],
        is_shared: bool = False,
    ) -> None:
        """``is_shared``: all users of the machine may read the adapters, if the directory lets them in."""
        self._store = store
        self._directory = directory
        self._most = most
        self._on_leaving = on_leaving
        self._is_shared = is_shared
        self._known: OrderedDict[str, asyncio.Task[AdapterFiles]] = OrderedDict()  # by archive, longest unused first
        self._users: Counter[str] = Counter()  # number of users, by archive
        self._leaving: dict[str, asyncio.Event] = {}  # set when the last user is gone
        self._disk = asyncio.Lock()  # so that nothing is published while it is being removed
        self._descriptor: int | None = None

    def open(self) -> None:
        """Lock the directory and remove what an earlier server left there. Raises OSError or DirectoryTaken."""
        is_new = not self._directory.exists()
        self._directory.mkdir(parents=True, exist_ok=True)
        if self._is_shared and is_new:
            self._directory.chmod(0o755)
        descriptor = os.open(self._directory / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise DirectoryTaken(f"another server publishes adapters in {str(self._directory)!r}") from None
        self._descriptor = descriptor
        for entry in self._directory.iterdir():
            if _OURS.fullmatch(entry.name):
                shutil.rmtree(entry, ignore_errors=True)

    def close(self) -> None:
        """Remove all adapters and release the directory."""
        for publishing in self._known.values():
            if publishing.done() and not publishing.cancelled() and publishing.exception() is None:
                shutil.rmtree(publishing.result().directory, ignore_errors=True)
        self._known.clear()
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def knows(self, archive: str) -> bool:
        """Whether the archive is published or being published."""
        return archive in self._known

    @asynccontextmanager
    async def lent(self, archive: str, *, seal: str | None = None) -> AsyncIterator[AdapterFiles]:
        """Inside, the files of the adapter exist. Raises RequestError as loading the archive would."""
        publishing = self._known.get(archive)
        if publishing is None:
            publishing = self._known[archive] = asyncio.create_task(self._publish(archive, seal))
            publishing.add_done_callback(lambda task: task.cancelled() or task.exception())  # it may never be awaited
        self._known.move_to_end(archive)
        self._users[archive] += 1
        try:
            try:
                files = await asyncio.shield(publishing)
            except BaseException:
                if publishing.done() and self._known.get(archive) is publishing:
                    del self._known[archive]
                raise
            yield files
        finally:
            self._users[archive] -= 1
            if not self._users[archive]:
                del self._users[archive]
                if (left := self._leaving.pop(archive, None)) is not None:
                    left.set()

    async def forget(self, archive: str) -> None:
        """Remove the adapter of an archive, after samples that use it have ended."""
        if self._users[archive]:
            await self._leaving.setdefault(archive, asyncio.Event()).wait()
        if (publishing := self._known.pop(archive, None)) is not None:
            await self._remove(publishing)

    async def _publish(self, archive: str, seal: str | None) -> AdapterFiles:
        while len(self._known) > self._most and (idle := self._longest_unused()) is not None:
            await self.forget(idle)
        async with self._disk:
            files = await asyncio.to_thread(self._extract, archive, seal)
        log.info("adapter published archive=%s adapter=%s", archive, files.name)
        return files

    def _longest_unused(self) -> str | None:
        idle = (name for name, publishing in self._known.items() if not self._users[name] and publishing.done())
        return next(idle, None)

    def _extract(self, archive: str, seal: str | None) -> AdapterFiles:
        """Runs in a thread."""
        try:
            with Archive(self._store.open(archive), seal=seal) as opened:
                target = self._directory / f"chockstone-{opened.seal}"
                if not target.is_dir():
                    write_adapter(opened, target)
                    if self._is_shared:
                        _open_up(target)
                return AdapterFiles(target.name, str(target), has_head=has_head(opened))
        except CheckpointError as error:
            raise explain_load(error) from error

    async def _remove(self, publishing: asyncio.Task[AdapterFiles]) -> None:
        await asyncio.wait({publishing})
        if publishing.cancelled() or publishing.exception() is not None:
            return
        files = publishing.result()
        async with self._disk:
            if any(files.name == self._name(other) for other in self._known.values()):
                return  # a copy of it is in use
            await self._on_leaving(files.name)
            await asyncio.to_thread(shutil.rmtree, files.directory, ignore_errors=True)

    @staticmethod
    def _name(publishing: asyncio.Task[AdapterFiles]) -> str | None:
        if not publishing.done() or publishing.cancelled() or publishing.exception() is not None:
            return None
        return publishing.result().name


def _open_up(directory: Path) -> None:
    """Make files readable regardless of the umask of the server."""
    for file in directory.iterdir():
        file.chmod(0o644)
    directory.chmod(0o755)
