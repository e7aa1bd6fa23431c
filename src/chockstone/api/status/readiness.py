"""Readiness: whether the server can do what clients ask for, and every reason why it cannot.

The worker and the journal are known at once. Catalog, store and disk are asked, at most every two seconds however often
they are wanted: a probe needs no API key.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from chockstone.api.status.disk_space import DiskSpace, existing
from chockstone.catalog import CatalogError
from chockstone.checkpoints.errors import CheckpointMissing, StoreError
from chockstone.checkpoints.stores.file_store import FileStore
from chockstone.engine.engine import Engine

Check = Literal["server", "worker", "models", "journal", "catalog", "store", "disk"]
_FRESH_SECONDS: Final = 2.0
_TIMEOUT_SECONDS: Final = 2.0
_PROBE: Final = "readiness-probe"  # no archive has this name


@dataclass(frozen=True, slots=True)
class NotReady:
    check: Check
    detail: str
    is_starting: bool = False  # it passes by itself, when the worker has loaded its models


class Readiness:
    def __init__(
        self, engine: Engine, models: Collection[str], disk: DiskSpace, *, monotonic: Callable[[], float]
    ) -> None:
        self._engine = engine
        self._models = models
        self._disk = disk
        self._monotonic = monotonic
        self._asking: asyncio.Task[tuple[NotReady, ...]] | None = None
        self._asked_at = 0.0

    async def reasons(self) -> tuple[NotReady, ...]:
        """Why the server is not ready; empty: it is."""
        found = await self.found()
        return (*self.known(), *found)

    def known(self) -> tuple[NotReady, ...]:
        """Reasons that are known without asking."""
        found: list[NotReady] = []
        if self._engine.is_stopping:
            found.append(NotReady("server", "the server is shutting down"))
        if (reason := self._worker_reason()) is not None:
            found.append(reason)
        elif absent := self.absent_models():
            found.append(NotReady("models", f"the worker has not loaded {', '.join(absent)}"))
        if self._engine.journal_trouble is not None:
            found.append(NotReady("journal", f"the journal cannot be written: {self._engine.journal_trouble}"))
        return tuple(found)

    def absent_models(self) -> list[str]:
        """Models that the worker should serve and has not loaded."""
        loaded = self._engine.environment.get("models", {}) if self._engine.is_ready else {}
        return sorted(set(self._models) - set(loaded))

    async def found(self) -> tuple[NotReady, ...]:
        """Reasons that catalog, store and disk gave, at most two seconds ago."""
        is_old = self._monotonic() - self._asked_at >= _FRESH_SECONDS
        if self._asking is None or (self._asking.done() and is_old):
            self._asked_at = self._monotonic()
            self._asking = asyncio.create_task(self._ask())
        return await asyncio.shield(self._asking)

    def _worker_reason(self) -> NotReady | None:
        engine = self._engine
        if engine.is_ready:
            return None
        if engine.trouble is not None:
            return NotReady("worker", engine.trouble)
        status = engine.worker_status
        if status.phase == "stopped":
            return NotReady("worker", "the worker is not running, and will not be started again")
        if engine.generation:
            why = "" if status.last_death is None else f": {status.last_death}"
            return NotReady("worker", f"the worker is being started again{why}", is_starting=True)
        return NotReady("worker", "the models are being loaded", is_starting=True)

    async def _ask(self) -> tuple[NotReady, ...]:
        answers = await asyncio.gather(self._ask_catalog(), self._ask_store(), self._ask_disk())
        return tuple(answer for answer in answers if answer is not None)

    async def _ask_catalog(self) -> NotReady | None:
        try:
            async with asyncio.timeout(_TIMEOUT_SECONDS):
                await self._engine.catalog.ping()
        except TimeoutError:
            return NotReady("catalog", f"the catalog does not answer within {_TIMEOUT_SECONDS:g} seconds")
        except (CatalogError, OSError):  # its message may name hosts, and a probe needs no key
            return NotReady("catalog", "the catalog cannot be reached; the server's log says why")
        return None

    async def _ask_store(self) -> NotReady | None:
        store = self._engine.storage.store
        try:
            async with asyncio.timeout(_TIMEOUT_SECONDS):
                if not isinstance(store, FileStore):
                    await self._engine.storage.stat(_PROBE)
                elif not await asyncio.to_thread(_may_write, store.root):
                    return NotReady("store", "the directory of the archives cannot be read and written")
        except CheckpointMissing:
            return None  # the store answers
        except TimeoutError:
            return NotReady("store", f"the store does not answer within {_TIMEOUT_SECONDS:g} seconds")
        except (StoreError, OSError):
            return NotReady("store", "the store cannot be reached; the server's log says why")
        return None

    async def _ask_disk(self) -> NotReady | None:
        try:
            async with asyncio.timeout(_TIMEOUT_SECONDS):
                space = await self._disk.look()
        except (OSError, TimeoutError):
            return NotReady("disk", "the free space of the disk cannot be read")
        if space.free_bytes >= self._disk.reserve_bytes:
            return None
        return NotReady(
            "disk",
            f"the disk has {space.free_bytes} bytes left, less than the reserve of {self._disk.reserve_bytes} bytes: "
            "no checkpoint can be saved",
        )


def _may_write(directory: Path) -> bool:
    return os.access(existing(directory.absolute()), os.R_OK | os.W_OK | os.X_OK)
