"""The sampler table: one row per sampling session. Its id has the session and its number in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from sqlalchemy import and_, or_, select

from chockstone.catalog import schema as tables
from chockstone.catalog.database.database import Database
from chockstone.catalog.database.rows import RowMapper
from chockstone.catalog.errors import RowMissing


@dataclass(frozen=True, slots=True)
class SamplerRow:
    sampling_session_id: str
    session_id: str
    seq_id: int
    owner: str
    base_model: str
    model_path: str | None  # None: the base model itself, or weights that have no path
    archive: str | None  # in the store: the weights it samples from; None: the base model's
    created_at: datetime
    next_client_counter: int  # what the next client to join gets
    seal: str | None = None  # of the archive, if it is known


_ROWS: Final = RowMapper(SamplerRow, tables.sampling_sessions)
_SAMPLERS: Final = tables.sampling_sessions.c
_BATCH: Final = 1000  # archives in one statement: databases limit its parameters


class SamplerTable:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def create(
        self,
        session_id: str,
        seq_id: int,
        *,
        owner: str,
        base_model: str,
        now: datetime,
        model_path: str | None = None,
        archive: str | None = None,
        seal: str | None = None,
    ) -> SamplerRow:
        """Create the sampling session, or return the existing one with this number, whatever its values."""
        sampling_session_id = f"{session_id}:sample:{seq_id}"
        sampler = await _ROWS.create_once(
            self._database,
            sampling_session_id=sampling_session_id,
            session_id=session_id,
            seq_id=seq_id,
            owner=owner,
            base_model=base_model,
            model_path=model_path,
            archive=archive,
            seal=seal,
            created_at=now,
            next_client_counter=1,  # 0 is the client that made it
        )
        if sampler is None:
            raise RowMissing(
                f"sampling session {sampling_session_id!r} needs session {session_id!r}, which is not in this catalog"
            )
        return sampler

    async def get(self, sampling_session_id: str) -> SamplerRow:
        found = await _ROWS.find(self._database, _SAMPLERS.sampling_session_id == sampling_session_id)
        return _present(sampling_session_id, found)

    async def join(self, sampling_session_id: str) -> int:
        """The number of the next client: 1, 2, 3 and so on, each given once."""
        joined = await _ROWS.change(
            self._database,
            _SAMPLERS.sampling_session_id == sampling_session_id,
            next_client_counter=_SAMPLERS.next_client_counter + 1,
        )
        return _present(sampling_session_id, joined).next_client_counter - 1

    async def list_by_session(self, session_id: str) -> tuple[SamplerRow, ...]:
        """In the order of their ``seq_id``."""
        query = select(*_ROWS.columns).where(_SAMPLERS.session_id == session_id).order_by(_SAMPLERS.seq_id)
        return await _ROWS.read(self._database, query)

    async def list_unfinished(
        self, owner: str | None, *, after: str | None = None, limit: int
    ) -> tuple[SamplerRow, ...]:
        """Of sessions that are not finished, newest first; of all users when ``owner`` is None.

        ``after``: the id of the last one of the page before; an id that is not there begins at the first page.
        """
        sessions = tables.sessions.c
        query = select(*_ROWS.columns).join(tables.sessions, sessions.session_id == _SAMPLERS.session_id)
        query = query.where(sessions.finished_at.is_(None))
        if owner is not None:
            query = query.where(_SAMPLERS.owner == owner)
        last = None if after is None else await _ROWS.find(self._database, _SAMPLERS.sampling_session_id == after)
        if last is not None:
            is_next_id = _SAMPLERS.sampling_session_id < last.sampling_session_id
            is_older = _SAMPLERS.created_at < last.created_at
            query = query.where(or_(is_older, and_(_SAMPLERS.created_at == last.created_at, is_next_id)))
        newest_first = query.order_by(_SAMPLERS.created_at.desc(), _SAMPLERS.sampling_session_id.desc())
        return await _ROWS.read(self._database, newest_first.limit(limit))

    async def in_use(self, archives: Sequence[str]) -> set[str]:
        """The subset of ``archives`` that sampling sessions of unfinished sessions sample from."""
        sessions = tables.sessions.c
        query = (
            select(_SAMPLERS.archive)
            .distinct()
            .join_from(tables.sampling_sessions, tables.sessions, sessions.session_id == _SAMPLERS.session_id)
            .where(sessions.finished_at.is_(None))
        )
        used: set[str] = set()
        for start in range(0, len(archives), _BATCH):
            some = _SAMPLERS.archive.in_(archives[start : start + _BATCH])
            used.update(archive for [archive] in await self._database.read(query.where(some)))
        return used


def _present(sampling_session_id: str, sampler: SamplerRow | None) -> SamplerRow:
    if sampler is None:
        raise RowMissing(
            f"sampling session {sampling_session_id!r} is not in this catalog; create it with create_sampling_session"
        )
    return sampler
