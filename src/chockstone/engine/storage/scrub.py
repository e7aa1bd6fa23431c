"""The scrub: every checkpoint is read again now and then, slowly, to find what the disk has lost.

What differs from its digests is marked damaged, so that its owner learns of it while there are others.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from chockstone.catalog import Catalog, RowMissing
from chockstone.engine.config import StorageRules
from chockstone.engine.storage.verification import CheckpointVerifier
from chockstone.wire.failures import RequestError

log = logging.getLogger(__name__)
_AT_ONCE: Final = 32
_LONGEST_PAUSE_SECONDS: Final = 300.0
_SHORTEST_PAUSE_SECONDS: Final = 0.1


@dataclass(frozen=True, slots=True)
class ScrubResult:
    """Since the server started."""

    checked: int = 0
    damaged: int = 0
    last_at: datetime | None = None


class Scrub:
    def __init__(
        self, catalog: Catalog, verifier: CheckpointVerifier, rules: StorageRules, *, now: Callable[[], datetime]
    ) -> None:
        self._catalog = catalog
        self._verifier = verifier
        self._rules = rules
        self._now = now
        self._report = ScrubResult()

    def report(self) -> ScrubResult:
        return self._report

    async def keep(self) -> None:
        """Read what has not been read for long, for ever; returns at once if the rules turn it off."""
        before = self._report
        while self._rules.scrub_bytes_per_second > 0:
            checked = 0
            try:
                checked = await self.check_some()
            except Exception as error:  # noqa: BLE001  # retried with the next round
                log.warning("scrub failed error=%s", error)
            if not checked:
                self._tell_pass(before)
                before = self._report
                await asyncio.sleep(self.pause_seconds)

    @property
    def pause_seconds(self) -> float:
        """When all were read lately, or none could be: short enough for whatever becomes due meanwhile."""
        wanted = min(_LONGEST_PAUSE_SECONDS, self._rules.scrub_every_seconds / 4)
        return max(wanted, _SHORTEST_PAUSE_SECONDS)

    async def check_some(self) -> int:
        """Read a few of those that were not read for longest; how many were."""
        before = self._now() - timedelta(seconds=self._rules.scrub_every_seconds)
        checked = 0
        for row in await self._catalog.checkpoints.list_unverified(before=before, limit=_AT_ONCE):
            try:
                found = await self._verifier.verify(row, bytes_per_second=self._rules.scrub_bytes_per_second or None)
            except RowMissing:
                continue  # deleted meanwhile
            except RequestError as error:
                log.warning("checkpoint not scrubbed path=%s error=%s", row.path, error)
                continue
            checked += 1
            was = self._report
            self._report = ScrubResult(was.checked + 1, was.damaged + (found.state == "damaged"), self._now())
        return checked

    def _tell_pass(self, before: ScrubResult) -> None:
        checked, damaged = self._report.checked - before.checked, self._report.damaged - before.damaged
        if checked:
            log.info("scrub pass finished checked=%d damaged=%d", checked, damaged)
