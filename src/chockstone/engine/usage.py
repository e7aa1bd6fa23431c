"""Usage: counts tokens trained and sampled and bytes stored, and writes the counts to the catalog.

Tokens are in a journal, too. The catalog records how far each journal is counted in the same transaction as the
amounts, so tokens that this process did not write before it was killed are counted from the journal by the next one.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from chockstone.catalog import Catalog, CatalogError, JournalUses, RowMissing, UsagePosition, Use, UseType

log = logging.getLogger(__name__)
SAMPLES: Final = "samples"  # source of all uses of the sample journal
_INTERVAL_SECONDS: Final = 60.0
_STORAGE_SECONDS: Final = 600.0  # between two looks at how much is kept
_GIGABYTE: Final = 10**9


@dataclass(frozen=True, slots=True)
class TrainedTotal:
    """How many tokens a run trained since it was created, as its journal records it."""

    tokens: int = 0
    through: int = 0  # sequence of the last pass that is counted in ``tokens``
    at: int = 0  # seconds since 1970: when that pass ended

    @property
    def moment(self) -> datetime:
        return datetime.fromtimestamp(self.at, UTC)

    def to_json(self) -> dict[str, int]:
        return {"tokens": self.tokens, "through": self.through, "at": self.at}

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> TrainedTotal:  # Any: plain JSON
        return cls(int(found["tokens"]), int(found["through"]), int(found["at"]))


@dataclass(frozen=True, slots=True)
class JournalPoint:
    """Where a journal has a use. A use is counted once, however often it is reported with the same point."""

    source: str  # id of the run, or SAMPLES
    birth: str
    position: int  # grows from use to use: see UsagePosition.counted
    through: int  # sequence of the last operation that has ended
    at: datetime
    on_counted: Callable[[], None] = lambda: None  # called when the catalog has it


class _Key(NamedTuple):
    hour: datetime
    owner: str
    session_id: str | None
    base_model: str
    type: UseType


@dataclass(slots=True)
class _Waiting:
    """Uses of one journal that the catalog may lack."""

    through: int = 0
    uses: list[tuple[JournalPoint, list[tuple[_Key, float]]]] = field(default_factory=list)


_Journals = dict[tuple[str, str], _Waiting]  # by source and birth
_Projects = dict[str | None, str | None]  # by session


class UsageMeter:
    def __init__(self, catalog: Catalog, *, now: Callable[[], datetime]) -> None:
        self._catalog = catalog
        self._now = now
        self._amounts: Counter[_Key] = Counter()  # that no journal has
        self._journals: _Journals = {}
        self._turn = asyncio.Lock()  # of writing: positions only grow
        self._stored_until = now()  # what was kept is accounted for until then

    def trained(
        self, session_id: str, *, owner: str, base_model: str, tokens: int, point: JournalPoint | None = None
    ) -> None:
        """``point``: None if no journal is kept. Then the count is lost with this process if it is not written yet."""
        self._count({"training": tokens}, session_id, owner, base_model, point)

    def sampled(
        self,
        session_id: str,
        *,
        owner: str,
        base_model: str,
        prompt_tokens: int,
        tokens: int,
        point: JournalPoint | None = None,
    ) -> None:
        amounts: dict[UseType, int] = {"sampling_prefill": prompt_tokens, "sampling_sample": tokens}
        self._count(amounts, session_id, owner, base_model, point)

    def ended(self, source: str, birth: str, *, through: int) -> None:
        """All operations up to ``through`` have ended, and what they used was reported."""
        waiting = self._journals.setdefault((source, birth), _Waiting())
        waiting.through = max(waiting.through, through)

    def saved(self, session_id: str, *, owner: str, base_model: str) -> Use:
        """The use of a saved checkpoint, which is counted in the transaction that publishes the checkpoint."""
        return Use(self._now(), owner, session_id, None, base_model, "checkpoint", False, 1)

    async def position(self, source: str, birth: str) -> UsagePosition | None:
        """How far the catalog has counted this journal. Raises CatalogError."""
        found = await self._catalog.usage.position(source)
        return found if found is not None and found.birth == birth else None

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
        """Write the counts so far to the catalog; call it before reading the usage. Raises CatalogError."""
        async with self._turn:
            amounts, self._amounts = self._amounts, Counter()
            journals, self._journals = self._journals, {}
            is_begun = False
            try:
                projects = await self._projects(amounts, journals)
                is_begun = True
                await self._catalog.usage.add(
                    [_use(key, amount, projects) for key, amount in amounts.items()],
                    [_journal_uses(*key, waiting, projects) for key, waiting in journals.items()],
                )
            except BaseException as error:
                self._put_back(journals)  # those that are written after all are skipped the next time
                if isinstance(error, CatalogError) or not is_begun:
                    self._amounts.update(amounts)
                raise
        for waiting in journals.values():
            for point, _ in waiting.uses:
                point.on_counted()

    async def sources(self) -> set[str]:
        """The runs that the catalog has counted in part, at least. Raises CatalogError."""
        return {*await self._catalog.usage.sources()} - {SAMPLES}

    async def forget(self, source: str) -> None:
        """Its journal is deleted, and what it reported is written. Raises CatalogError."""
        await self._catalog.usage.forget(source)

    async def flush_journal(self, source: str) -> None:
        """Write what this journal reported, before the journal is deleted. Raises CatalogError."""
        if any(key[0] == source for key in self._journals) or self._turn.locked():
            await self.flush()

    def _put_back(self, journals: _Journals) -> None:
        for key, waiting in journals.items():
            newer = self._journals.get(key, _Waiting())
            self._journals[key] = _Waiting(max(waiting.through, newer.through), waiting.uses + newer.uses)

    async def _projects(self, amounts: Iterable[_Key], journals: _Journals) -> _Projects:
        """The project of each session that has used something."""
        reported = (use for waiting in journals.values() for _, uses in waiting.uses for use in uses)
        sessions = {key.session_id for key in amounts} | {key.session_id for key, _ in reported}
        return {session_id: await self._project(session_id) for session_id in sessions}

    async def _project(self, session_id: str | None) -> str | None:
        if session_id is not None:
            with suppress(RowMissing):
                return (await self._catalog.sessions.get(session_id)).project_id
        return None

    def _count(
        self,
        amounts: dict[UseType, int],
        session_id: str,
        owner: str,
        base_model: str,
        point: JournalPoint | None,
    ) -> None:
        hour = _hour(self._now() if point is None else point.at)
        uses = [(_Key(hour, owner, session_id, base_model, use), amount) for use, amount in amounts.items() if amount]
        if point is None:
            for key, amount in uses:
                self._amounts[key] += amount
        else:
            self.ended(point.source, point.birth, through=point.through)
            self._journals[point.source, point.birth].uses.append((point, list(uses)))


def _journal_uses(source: str, birth: str, waiting: _Waiting, projects: _Projects) -> JournalUses:
    uses = [(point.position, [_use(key, amount, projects) for key, amount in used]) for point, used in waiting.uses]
    return JournalUses(source, birth, waiting.through, uses)


def _use(key: _Key, amount: float, projects: _Projects) -> Use:
    project_id = projects[key.session_id]
    return Use(key.hour, key.owner, key.session_id, project_id, key.base_model, key.type, False, amount)


def _hour(moment: datetime) -> datetime:
    return moment.replace(minute=0, second=0, microsecond=0)
