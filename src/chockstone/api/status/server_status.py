"""The server's status: the parts that answer how the server is."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Coroutine
from datetime import datetime
from typing import Any

from chockstone.api.config import ServerConfig
from chockstone.api.status.disk_space import RECORD, DiskSpace
from chockstone.api.status.problems import Problems
from chockstone.api.status.readiness import Readiness
from chockstone.checkpoints.stores.file_store import FileStore
from chockstone.engine.doctor.background import BackgroundExamination
from chockstone.engine.engine import Engine
from chockstone.engine.ownership.data_directory import RUN_JOURNALS


class ServerStatus:
    def __init__(
        self, engine: Engine, config: ServerConfig, models: Collection[str], *, now: Callable[[], datetime]
    ) -> None:
        self.started_at = now()
        self._started_monotonic = time.monotonic()
        store = engine.storage.store
        self.disk = DiskSpace(
            [config.data, store.root] if isinstance(store, FileStore) else [config.data],
            record=config.data / RECORD,
            reserve_bytes=config.storage.reserve_bytes,
            now=lambda: now().timestamp(),
        )
        self.readiness = Readiness(engine, models, self.disk, monotonic=time.monotonic)
        self.doctor = BackgroundExamination(store, engine.catalog, journals=config.data / RUN_JOURNALS, now=now)
        self.problems = Problems(engine, self.readiness, self.disk, now=now, monotonic=time.monotonic)

    @property
    def uptime_seconds(self) -> float:
        return time.monotonic() - self._started_monotonic

    def tasks(self) -> list[Coroutine[Any, Any, None]]:  # Any: of a coroutine
        """To run as long as the server does."""
        return [self.disk.keep(), self.problems.keep(), self.doctor.keep()]
