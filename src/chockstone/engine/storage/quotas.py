"""Quotas: how many bytes a save may take, counted so that two saves never count the same room.

While a quota applies to an owner, its saves are written one at a time; without one this costs nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from weakref import WeakValueDictionary

from chockstone.catalog import Catalog, RowMissing
from chockstone.engine.storage.policies import PolicyStore, Quota
from chockstone.wire.failures import BadRequest
from chockstone.wire.paths import TinkerPath
from chockstone.wire.sizes import format_bytes

_EVERYONE: Final = ""  # no owner is called so


@dataclass(frozen=True, slots=True)
class Room:
    """What a quota has left."""

    quota: Quota
    used_bytes: int

    @property
    def allowance_bytes(self) -> int:
        return max(self.quota.limit_bytes - self.used_bytes, 0)


@dataclass(frozen=True, slots=True)
class QuotaShare:
    """What a save may take; no rooms: as much as the disk has."""

    rooms: tuple[Room, ...] = ()

    @property
    def tightest(self) -> Room | None:
        return min(self.rooms, key=lambda room: room.allowance_bytes, default=None)

    @property
    def allowance_bytes(self) -> int | None:
        return None if self.tightest is None else self.tightest.allowance_bytes

    def check(self, path: str, size_bytes: int) -> None:
        """Raises BadRequest if as many bytes more do not fit."""
        if self.tightest is not None and size_bytes > self.tightest.allowance_bytes:
            raise self.refusal(path, size_bytes)

    def refusal(self, path: str, size_bytes: int) -> BadRequest:
        room = self.tightest
        assert room is not None, "only a quota refuses"
        return BadRequest(
            f"checkpoint {path!r} needs {format_bytes(size_bytes)}: {room.quota} may keep "
            f"{format_bytes(room.quota.limit_bytes)}, of which {format_bytes(room.used_bytes)} are in use and "
            f"{format_bytes(room.allowance_bytes)} are left. {how_to_free(room.quota.run_id)}, or have the quota "
            "raised."
        )


def how_to_free(run_id: str | None) -> str:
    """Commands to paste; of all runs when it is None."""
    of_run = "" if run_id is None else f" --run {run_id}"
    return (
        f"See what is kept with `chockstone checkpoints ls{of_run}` and free some with "
        f"`chockstone checkpoints rm{of_run} --older-than 7d --dry-run`, then without `--dry-run`"
    )


class QuotaLedger:
    def __init__(self, catalog: Catalog, policies: PolicyStore, *, now: Callable[[], datetime]) -> None:
        self._catalog = catalog
        self._policies = policies
        self._now = now
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def share(self, run_id: str, owner: str, *, replaces: TinkerPath | None = None) -> AsyncIterator[QuotaShare]:
        """What a save of this run may take; no other save of its owner starts until the block ends.

        The bytes of the checkpoint that it ``replaces`` count as free.
        """
        quotas = self._policies.quotas_of(run_id, owner)
        if not quotas:
            yield QuotaShare()
            return
        is_shared = any(quota.owner is quota.run_id is None for quota in quotas)
        async with self._locks.setdefault(_EVERYONE if is_shared else owner, asyncio.Lock()):
            freed_bytes = 0 if replaces is None else await self._size_of(replaces)
            yield QuotaShare(tuple([await self._room(quota, freed_bytes) for quota in quotas]))

    async def _room(self, quota: Quota, freed_bytes: int) -> Room:
        used = await self._catalog.checkpoints.usage(now=self._now(), owner=quota.owner, run_id=quota.run_id)
        return Room(quota, max(used.size_bytes - freed_bytes, 0))

    async def _size_of(self, path: TinkerPath) -> int:
        try:
            row = await self._catalog.checkpoints.get(path.run_id, path.kind.value, path.name, now=self._now())
        except RowMissing:
            return 0
        return row.size_bytes
