"""The run table: one row per trained model. A run's id has its session and its number in it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

from sqlalchemy import Double, bindparam, delete, func, or_, select, update

from chockstone.catalog import schema as tables
from chockstone.catalog.database.database import Database
from chockstone.catalog.database.rows import JsonObject, Page, RowMapper
from chockstone.catalog.errors import RowMissing

# A parked run is on disk only; its next operation wakes it.
RunState = Literal["active", "parked", "unloaded", "lost"]


@dataclass(frozen=True, slots=True)
class RunRow:
    run_id: str
    session_id: str
    model_seq_id: int
    owner: str
    base_model: str
    spec: JsonObject
    optimizer_config: JsonObject
    user_metadata: Mapping[str, str]
    created_at: datetime
    last_request_at: datetime
    project_id: str | None
    state: RunState
    failure: str | None  # why it is lost
    steps: int | None = None  # of the optimizer, as of the last flush; None: not known
    last_loss: float | None = None  # of the last forward_backward, as of the last flush
    parent: str | None = None  # path of the checkpoint of another run that was loaded last
    tokens: int | None = None  # trained, as of the last flush

    @property
    def progress(self) -> RunProgress:
        """As of the last flush."""
        return RunProgress(self.steps, self.last_loss, self.parent, self.tokens)


@dataclass(frozen=True, slots=True)
class RunProgress:
    """How far a run is, and which checkpoint it was made from. None: not known."""

    steps: int | None = None
    last_loss: float | None = None
    parent: str | None = None
    tokens: int | None = None  # trained


_ROWS: Final = RowMapper(RunRow, tables.runs)
_RUNS: Final = tables.runs.c
_BATCH: Final = 500  # ids in one statement: databases limit its parameters
_RUN_ID: Final = re.compile(r"(?P<session>.+):train:(?P<number>0|[1-9]\d{0,17})")


class RunTable:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def create(
        self,
        session_id: str,
        model_seq_id: int,
        *,
        owner: str,
        base_model: str,
        spec: JsonObject,
        now: datetime,
        optimizer_config: JsonObject | None = None,
        user_metadata: Mapping[str, str] | None = None,
        project_id: str | None = None,
        state: RunState = "active",
    ) -> RunRow:
        """Create the run, or return the existing run with this number, whatever its values."""
        run_id = f"{session_id}:train:{model_seq_id}"
        run = await _ROWS.create_once(
            self._database,
            run_id=run_id,
            session_id=session_id,
            model_seq_id=model_seq_id,
            owner=owner,
            base_model=base_model,
            spec=dict(spec),
            optimizer_config=dict(optimizer_config or {}),
            user_metadata=dict(user_metadata or {}),
            created_at=now,
            last_request_at=now,
            project_id=project_id,
            state=state,
        )
        if run is None:
            raise RowMissing(f"run {run_id!r} needs session {session_id!r}, which is not in this catalog")
        return run

    async def rebuild(
        self,
        run_id: str,
        *,
        owner: str,
        base_model: str,
        spec: JsonObject,
        now: datetime,
        optimizer_config: JsonObject | None = None,
        user_metadata: Mapping[str, str] | None = None,
        project_id: str | None = None,
        state: RunState = "parked",
    ) -> RunRow:
        """Create the row of a run that only its journal has; an existing row is left as it is.

        The row of its session must exist. ``ValueError`` when ``run_id`` is not a run's id.
        """
        if (match := _RUN_ID.fullmatch(run_id)) is None:
            raise ValueError(f"{run_id!r} is not the id of a run")
        return await self.create(
            match["session"],
            int(match["number"]),
            owner=owner,
            base_model=base_model,
            spec=spec,
            now=now,
            optimizer_config=optimizer_config,
            user_metadata=user_metadata,
            project_id=project_id,
            state=state,
        )

    async def get(self, run_id: str) -> RunRow:
        return _present(run_id, await _ROWS.find(self._database, _RUNS.run_id == run_id))

    async def list(
        self, owner: str | None, *, limit: int, offset: int = 0, project_id: str | None = None
    ) -> Page[RunRow]:
        """Newest first; of all users when ``owner`` is None, of all projects when ``project_id`` is None."""
        where = []
        if owner is not None:
            where.append(_RUNS.owner == owner)
        if project_id is not None:
            where.append(_RUNS.project_id == project_id)
        newest_first = (_RUNS.created_at.desc(), _RUNS.run_id.desc())
        return await _ROWS.read_page(self._database, *where, order_by=newest_first, limit=limit, offset=offset)

    async def list_by_session(self, session_id: str) -> tuple[RunRow, ...]:
        """In the order of their ``model_seq_id``."""
        query = select(*_ROWS.columns).where(_RUNS.session_id == session_id).order_by(_RUNS.model_seq_id)
        return await _ROWS.read(self._database, query)

    async def list_in_state(self, state: RunState) -> tuple[RunRow, ...]:
        """Oldest first. A restarted server recovers the active ones."""
        query = select(*_ROWS.columns).where(_RUNS.state == state).order_by(_RUNS.created_at, _RUNS.run_id)
        return await _ROWS.read(self._database, query)

    async def are_over(self, run_ids: Sequence[str]) -> Mapping[str, bool]:
        """For each known run: whether it is unloaded, or its session is finished."""
        session = tables.sessions.c
        query = select(_RUNS.run_id, or_(_RUNS.state == "unloaded", session.finished_at.is_not(None)))
        query = query.join(tables.sessions, session.session_id == _RUNS.session_id)
        found: dict[str, bool] = {}
        for start in range(0, len(run_ids), _BATCH):
            some = query.where(_RUNS.run_id.in_(run_ids[start : start + _BATCH]))
            found |= {run_id: bool(is_over) for run_id, is_over in await self._database.read(some)}
        return found

    async def touch_many(self, requests: Mapping[str, datetime]) -> None:
        """Record each run's last request, in one transaction. Never an earlier one; unknown ids are skipped."""
        await _ROWS.touch_many(self._database, _RUNS.run_id, _RUNS.last_request_at, requests)

    async def record_progress(self, progress: Mapping[str, RunProgress]) -> None:
        """Write the progress of each run in one transaction. None keeps the value; unknown ids are skipped."""
        if not progress:
            return
        values = {
            _RUNS.steps: func.coalesce(bindparam("new_steps", type_=_RUNS.steps.type), _RUNS.steps),
            _RUNS.last_loss: func.coalesce(bindparam("new_loss", type_=Double()), _RUNS.last_loss),
            _RUNS.parent: func.coalesce(bindparam("new_parent", type_=_RUNS.parent.type), _RUNS.parent),
            _RUNS.tokens: func.coalesce(bindparam("new_tokens", type_=_RUNS.tokens.type), _RUNS.tokens),
        }
        change = update(tables.runs).where(_RUNS.run_id == bindparam("changed")).values(values)
        # Always in the same order, so that two transactions do not deadlock.
        rows = [
            {
                "changed": run_id,
                "new_steps": each.steps,
                "new_loss": each.last_loss,
                "new_parent": each.parent,
                "new_tokens": each.tokens,
            }
            for run_id, each in sorted(progress.items())
        ]
        await self._database.write_many(change, rows)

    async def delete(self, run_id: str) -> None:
        """Delete the row. Checkpoints, recoveries and the audit refer to the run by id and stay."""
        await self._database.write(delete(tables.runs).where(_RUNS.run_id == run_id))

    async def set_state(self, run_id: str, state: RunState, *, failure: str | None = None) -> RunRow:
        """``failure`` replaces the previous one."""
        changed = await _ROWS.change(self._database, _RUNS.run_id == run_id, state=state, failure=failure)
        return _present(run_id, changed)


def _present(run_id: str, run: RunRow | None) -> RunRow:
    if run is None:
        raise RowMissing(f"run {run_id!r} is not in this catalog; create it with create_model")
    return run
