"""Usage: counts tokens trained and sampled and bytes stored, and writes the counts to the catalog."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from typing import Final, NamedTuple

from chockstone.catalog import Catalog, CatalogError, RowMissing, Use, UseType

log = logging.getLogger(__name__)
_INTERVAL_SECONDS: Final = 60.0
_STORAGE_SECONDS: Final = 600.0  # between two looks at how much is kept
_GIGABYTE: Final = 10**9


class _Key(NamedTuple):
    hour: datetime
    owner: str
    session_id: str | None
    base_model: str
    type: UseType


class UsageMeter:
    def __init__(self, catalog: Catalog, *, now: Callable[[], datetime]) -> None:
        self._catalog = catalog
        self._now = now
        self._amounts: Counter[_Key] = Counter()
        self._stored_until = now()  # what was kept is accounted for until then

    def trained(self, session_id: str, *, owner: str, base_model: str, tokens: int) -> None:
        self._count("training", session_id, owner, base_model, tokens)

    def sampled(self, session_id: str, *, owner: str, base_model: str, prompt_tokens: int, tokens: int) -> None:
        self._count("sampling_prefill", session_id, owner, base_model, prompt_tokens)
        self._count("sampling_sample", session_id, owner, base_model, tokens)

    def saved(self, session_id: str, *, owner: str, base_model: str) -> None:
        self._count("checkpoint", session_id, owner, base_model, 1)

    async def keep(self) -> None:
        """Write the counts to the catalog, for ever."""
        while True:
            await asyncio.sleep(_INTERVAL_SECONDS)
            try:
                if (self._now() - self._stored_until).total_seconds() >= _STORAGE_SECONDS:
                    await self.count_storage()
                await self.flush()
            except CatalogError as error:
                log.warning("usage not written error=%s", error)

    async def count_storage(self) -> None:
        """Account for what has been kept since the last time, taking it for as much as there is now."""
        now = self._now()
        hours = (now - self._stored_until).total_seconds() / 3600
        for owner, kept in (await self._catalog.checkpoints.usage_by_owner(now)).items():
            key = _Key(_hour(now), owner, None, "", "storage")
            self._amounts[key] += kept.size_bytes / _GIGABYTE * hours  # type: ignore[assignment]  # a Counter of floats
        self._stored_until = now

    async def flush(self) -> None:
        """Write the counts so far to the catalog; call it before reading the usage."""
        amounts, self._amounts = self._amounts, Counter()
        try:
            projects = {
                session_id: await self._project(session_id) for session_id in {key.session_id for key in amounts}
            }
            uses = [
                Use(
                    key.hour,
                    key.owner,
                    key.session_id,
                    projects[key.session_id],
                    key.base_model,
                    key.type,
                    False,
                    amount,
                )
                for key, amount in amounts.items()
            ]
            await self._catalog.usage.add(uses)
        except CatalogError:
            self._amounts.update(amounts)
            raise

    async def _project(self, session_id: str | None) -> str | None:
        if session_id is not None:
            with suppress(RowMissing):
                return (await self._catalog.sessions.get(session_id)).project_id
        return None

    def _count(self, use: UseType, session_id: str, owner: str, base_model: str, amount: int) -> None:
        if amount:
            self._amounts[_Key(_hour(self._now()), owner, session_id, base_model, use)] += amount


def _hour(moment: datetime) -> datetime:
    return moment.replace(minute=0, second=0, microsecond=0)
