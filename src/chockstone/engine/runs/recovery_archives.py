"""Recovery archives: a run's whole state, taken now and then, so that a replay stays short.

Each holds all up to some operation of the journal, which stands in its name. Two are kept: should the
newest be damaged, the other and a longer replay give the same.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from chockstone.backends.protocol import SaveCall, Worker, WorkerLost
from chockstone.checkpoints.errors import StoreError
from chockstone.engine.config import Durability, StorageRules
from chockstone.engine.runs.run import ReplayBacklog, Run
from chockstone.engine.storage.archive_names import recovery_folder
from chockstone.engine.storage.archive_storage import ArchiveStorage
from chockstone.wire.failures import RequestError

log = logging.getLogger(__name__)
_KEPT: Final = 2
_OPERATIONS: Final = 10_000  # that a run remembers one by one, however little each of them was
_RETRY_SECONDS: Final = 5.0  # after an archive that could not be written


@dataclass(frozen=True, slots=True, order=True)
class RecoveryArchive:
    through: int  # the last operation that it holds
    name: str


class RecoveryArchives:
    def __init__(
        self,
        backend: Worker,
        storage: ArchiveStorage,
        durability: Durability,
        rules: StorageRules,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._backend = backend
        self._storage = storage
        self._durability = durability
        self._rules = rules
        self._monotonic = monotonic
        self._retry_at: dict[str, float] = {}  # by run
        self.on_taken: Callable[[Run], None] = lambda _: None

    def is_due(self, live: Run) -> bool:
        if not live.journal.is_kept or live.is_archiving or live.is_writing:
            return False
        if not live.generation or live.problem is not None:
            return False  # no worker has it, or it is over
        debt = live.debt
        if self._monotonic() < self._retry_at.get(live.run_id, 0.0):
            return False
        is_long = debt.steps >= self._durability.steps or debt.seconds >= self._durability.replay_seconds / 2
        is_many = debt.operations >= _OPERATIONS
        return debt.operations > 0 and (is_long or is_many or self.is_crowded(live))

    def is_crowded(self, live: Run) -> bool:
        """Whether the journal has grown so far that the run must wait for an archive."""
        return live.debt.operations > 0 and live.journal.size_bytes > self._durability.journal_bytes

    async def take(self, live: Run, through: int, release: Callable[[], None] = lambda: None) -> bool:
        """Write one, of the run as it is now; whether that worked. ``release`` is called once it is copied.

        To be called when ``through`` is the last operation that was begun, and all are ended.
        """
        before, live.debt = live.debt, ReplayBacklog()
        live.is_archiving = True
        name = f"{recovery_folder(live.run_id)}/{through:016d}.{secrets.token_hex(4)}"
        try:
            await live.journal.flushed()  # no result is found out again once the archive is there
            call = SaveCall(
                run_id=live.run_id,
                archive=name,
                kind="recovery",
                metadata={
                    "run_id": live.run_id,
                    "through": through,
                    "environment": dict(self._backend.environment),
                },
                reserve_bytes=self._rules.reserve_bytes,
            )
            reply = await self._backend.save(call, on_release=release, generation=live.generation)
        except RequestError as error:
            live.debt = ReplayBacklog(
                before.steps + live.debt.steps,
                before.seconds + live.debt.seconds,
                before.operations + live.debt.operations,
            )
            if not isinstance(error, WorkerLost):
                self._retry_at[live.run_id] = self._monotonic() + _RETRY_SECONDS
                log.warning("recovery archive not written run=%s error=%s", live.run_id, error)
            return False
        finally:
            live.is_archiving = False
        self._retry_at.pop(live.run_id, None)
        log.debug("recovery archive written run=%s through=%d bytes=%d", live.run_id, through, reply.size_bytes)
        live.seals[name] = reply.seal
        await self._keep_two(live, through)
        return True

    async def candidates(self, run_id: str) -> list[RecoveryArchive]:
        """Newest first. Raises StoreError."""
        found = []
        for name in await self._storage.names(recovery_folder(run_id)):
            through = name.rpartition("/")[2].partition(".")[0]
            if through.isdigit():
                found.append(RecoveryArchive(int(through), name))
        return sorted(found, reverse=True)

    async def drop_all(self, run_id: str) -> None:
        """The run is over."""
        try:
            for each in await self.candidates(run_id):
                await self._storage.delete(each.name)
        except StoreError as error:
            log.warning("recovery archives not deleted run=%s error=%s", run_id, error)

    async def _keep_two(self, live: Run, through: int) -> None:
        live.archives = [*live.archives, through][-_KEPT:]
        oldest = live.archives[0] if len(live.archives) == _KEPT else 0
        try:
            for each in await self.candidates(live.run_id):
                if each.through not in live.archives:
                    await self._storage.delete(each.name)
                    live.seals.pop(each.name, None)
        except StoreError as error:
            log.warning("old recovery archives not deleted run=%s error=%s", live.run_id, error)
        live.journal.rotate(live.head())
        live.journal.cover(oldest)
        self.on_taken(live)
