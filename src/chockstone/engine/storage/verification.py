"""Verification: reads checkpoints in full, records what it finds, and finds the latest one that can be used.

A checkpoint whose bytes are not those that were written stays listed, as damaged. None of this needs the worker.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from chockstone.catalog import Catalog, CatalogError, CheckpointKind, CheckpointRow, RowMissing
from chockstone.checkpoints.errors import CheckpointError, CheckpointMissing, DamagedArchive, UnsupportedArchive
from chockstone.checkpoints.restoring.verdicts import Verdict
from chockstone.checkpoints.restoring.walk_back import Ending, WalkBack
from chockstone.engine.audit import AuditLog
from chockstone.engine.storage.archive_storage import ArchiveStorage
from chockstone.wire.failures import BadRequest, RequestError, ServerFailure

log = logging.getLogger(__name__)
MISSING: Final = "its archive is not in the store"
_HISTORY: Final = 20  # checkpoints looked at for the latest, at a time
_TRUSTED_SECONDS: Final = 300.0  # an archive that was read in full is not read again for ``latest``
_TRUSTED: Final = 256


@dataclass(frozen=True, slots=True)
class SkippedCheckpointRow:
    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class Latest:
    row: CheckpointRow
    skipped: tuple[SkippedCheckpointRow, ...]  # newer ones that cannot be used


class CheckpointVerifier:
    def __init__(
        self, catalog: Catalog, storage: ArchiveStorage, audit: AuditLog, *, now: Callable[[], datetime]
    ) -> None:
        self._catalog = catalog
        self._storage = storage
        self._audit = audit
        self._now = now
        self._trusted: OrderedDict[str, datetime] = OrderedDict()  # archive → when it was read in full
        self._reading: dict[tuple[str, float | None], asyncio.Task[str]] = {}  # by archive and rate

    async def latest(
        self, run_id: str, kind: CheckpointKind, *, allow: Callable[[CheckpointRow], bool] = lambda _: True
    ) -> Latest:
        """The newest checkpoint that verifies in full, among those that ``allow`` lets the caller see.

        Damaged ones on the way are marked so. Raises RowMissing when none is left, ServerFailure when one cannot
        be read now, and BadRequest when one is of a newer format: nothing older stands in for those.
        """
        walk: WalkBack[CheckpointRow] = WalkBack()
        before: int | None = None
        while rows := await self._catalog.checkpoints.history(
            run_id, kind, now=self._now(), limit=_HISTORY, before_save_id=before, damaged_too=True
        ):
            walk.add(filter(allow, rows))
            for row in walk:
                found = await self._looked_at(row)
                if found is None:
                    walk.reject(Verdict.ABSENT, "it was deleted meanwhile")
                elif found.state == "ready":
                    walk.accept(step=found.step)
                    return Latest(found, _skipped(walk))
                else:
                    walk.reject(Verdict.CORRUPT, found.damage or "it is damaged", step=found.step, is_sure=True)
            before = rows[-1].save_id
        skipped = _skipped(walk)
        why = f": {len(skipped)} are damaged, the newest because {skipped[0].reason}" if skipped else ""
        raise RowMissing(
            f"run {run_id!r} has no checkpoint of kind {kind!r} that can be used{why}",
            code="damaged" if walk.ending is Ending.EXHAUSTED else None,
        )

    async def verify(self, row: CheckpointRow, *, bytes_per_second: float | None = None) -> CheckpointRow:
        """Read all of it and write down what was found; the row as it is then. Raises RowMissing if it was removed."""
        try:
            seal = await self._read_again(row, bytes_per_second)
        except DamagedArchive as error:
            changed = await self.found_damaged(row, str(error))
        except CheckpointMissing:
            changed = await self.found_missing(row)
        except UnsupportedArchive as error:
            raise BadRequest(f"checkpoint {row.path!r} was written by a newer version: {error}") from error
        except CheckpointError as error:
            raise ServerFailure(f"checkpoint {row.path!r} could not be read: {error}") from error
        else:
            changed = await self._found_right(row, seal)
        if changed is None:
            raise RowMissing(f"checkpoint {row.path!r} was removed while it was read")
        return changed

    async def found_bad(self, row: CheckpointRow, error: RequestError) -> None:
        """Record what the worker reported about the archive; a row that was removed meanwhile is left alone."""
        try:
            if error.code == "damaged":
                await self.found_damaged(row, error.reason or str(error))
            elif error.code == "missing":
                await self.found_missing(row)
        except CatalogError as failure:
            log.warning("damage not recorded path=%s error=%s", row.path, failure)

    async def found_damaged(self, row: CheckpointRow, reason: str) -> CheckpointRow | None:
        """Its bytes are not what was written: it stays listed, as damaged. None if it was removed meanwhile."""
        self._trusted.pop(row.archive, None)
        marked = await self._catalog.checkpoints.mark_damaged(row.save_id, reason)
        if marked is not None and (row.state, row.damage) != ("damaged", reason):
            log.warning("checkpoint damaged path=%s archive=%s damage=%s", row.path, row.archive, reason)
            self._audit(
                "checkpoint_damaged", owner=row.owner, run_id=row.run_id, path=row.path, details={"reason": reason}
            )
        return marked

    async def found_missing(self, row: CheckpointRow) -> CheckpointRow | None:
        """Its archive is not there; a row that is still published is marked. None if it was removed meanwhile."""
        return await self.found_damaged(row, MISSING)

    async def _found_right(self, row: CheckpointRow, seal: str) -> CheckpointRow | None:
        if row.seal is None:  # saved before rows had seals: what is there now, and sound, is what it is from here on
            await self._catalog.checkpoints.add_seal(row.save_id, seal)
        if row.state == "damaged":
            log.warning("checkpoint readable again path=%s archive=%s", row.path, row.archive)
            await self._catalog.checkpoints.mark_ready(row.save_id)
        await self._catalog.checkpoints.mark_verified([row.save_id], at=self._now())
        return await self._catalog.checkpoints.get_save(row.save_id)

    async def _looked_at(self, row: CheckpointRow) -> CheckpointRow | None:
        """The row once it has been read in full, lately or now; None if it was removed meanwhile."""
        if row.state == "damaged":
            return row
        read_at = self._trusted.get(row.archive)
        if read_at is not None and (self._now() - read_at).total_seconds() < _TRUSTED_SECONDS:
            return row
        with suppress(RowMissing):
            return await self.verify(row)
        return None

    async def _read_again(self, row: CheckpointRow, bytes_per_second: float | None) -> str:
        """Once more if it is damaged: the fault may have been on the way. Raises what the last reading did."""
        walk = WalkBack([row])
        seal = ""
        for each in walk:
            try:
                seal = await self._read(each, bytes_per_second)
            except CheckpointError as error:
                walk.failed(error)
                if not walk.will_retry:
                    raise
            else:
                walk.accept()
        return seal

    async def _read(self, row: CheckpointRow, bytes_per_second: float | None) -> str:
        """Concurrent requests at the same rate share one reading."""
        archive = row.archive
        key = (archive, bytes_per_second)
        if (reading := self._reading.get(key)) is None:
            verifying = self._storage.verify(archive, bytes_per_second=bytes_per_second, seal=row.seal)
            reading = self._reading[key] = asyncio.create_task(verifying)
            reading.add_done_callback(lambda done: self._read_ended(archive, bytes_per_second, done))
        return await asyncio.shield(reading)

    def _read_ended(self, archive: str, bytes_per_second: float | None, reading: asyncio.Task[str]) -> None:
        del self._reading[archive, bytes_per_second]
        if not reading.cancelled() and reading.exception() is None:
            self._trusted[archive] = self._now()
            self._trusted.move_to_end(archive)
            if len(self._trusted) > _TRUSTED:
                self._trusted.popitem(last=False)

    def forget(self, archive: str) -> None:
        """The archive is deleted."""
        self._trusted.pop(archive, None)


def _skipped(walk: WalkBack[CheckpointRow]) -> tuple[SkippedCheckpointRow, ...]:
    damaged = (look for look in walk.skipped if look.verdict is Verdict.CORRUPT)
    return tuple(SkippedCheckpointRow(look.candidate.path, look.reason) for look in damaged)
