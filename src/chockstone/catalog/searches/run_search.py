"""The search for runs: filtered, sorted and cut into pages by the database, with the checkpoints of each run counted.

A page ends with a cursor, which holds the last run's value of the sort column and its id. So a page stays right while
runs are added before it, and no database reads the rows that earlier pages had.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal

from sqlalchemy import BigInteger, Select, Text, and_, cast, false, func, or_, select, true
from sqlalchemy.sql.elements import ColumnElement

from chockstone.catalog import schema as tables
from chockstone.catalog.database.database import Database
from chockstone.catalog.database.rows import RowMapper
from chockstone.catalog.tables.checkpoint_rows import is_visible
from chockstone.catalog.tables.runs import RunRow, RunState

RunOrder = Literal["created", "last_request", "step", "loss", "tokens", "owner", "base_model", "bytes"]
SortValue = datetime | int | float | str | None
_ROWS: Final = RowMapper(RunRow, tables.runs)
_RUNS: Final = tables.runs.c
_WORDS: Final = 10  # of a search text; further ones are ignored
_PARENTS: Final = 50  # in one statement
_SEARCHED: Final = (
    _RUNS.run_id,
    _RUNS.owner,
    _RUNS.base_model,
    _RUNS.parent,
    _RUNS.project_id,
    cast(_RUNS.user_metadata, Text),
)


@dataclass(frozen=True, slots=True)
class RunCursor:
    """The last run of the page before."""

    last_value: SortValue  # of the sort column
    last_run_id: str


@dataclass(frozen=True, slots=True)
class RunQuery:
    """All conditions must hold. None: no condition.

    The catalog's state of a run is true only while no server has the run in memory. So a caller that knows the live
    runs gives their ids: those in ``matching`` have one of the wanted states, and no other run in ``live`` has.
    """

    owner: str | None = None
    states: Sequence[RunState] | None = None
    live: Collection[str] = ()
    matching: Collection[str] = ()
    text: str | None = None  # each of its words must occur in an id, a name, the parent or the metadata
    order: RunOrder = "created"
    is_descending: bool = True
    limit: int = 50
    cursor: RunCursor | None = None


@dataclass(frozen=True, slots=True)
class RunSummaryRow:
    run: RunRow
    checkpoints: int  # published and not expired
    checkpoint_bytes: int


@dataclass(frozen=True, slots=True)
class RunPage:
    runs: tuple[RunSummaryRow, ...]
    total_count: int  # of all pages
    cursor: RunCursor | None  # None: this is the last page


class RunSearch:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def search(self, query: RunQuery, *, now: datetime) -> RunPage:
        conditions = _conditions(query)
        count = select(func.count()).select_from(tables.runs).where(*conditions)
        [[total_count]] = await self._database.read(count)
        found = await self._database.read(_statement(query, conditions, now))
        width = len(_ROWS.columns)
        runs = tuple(RunSummaryRow(_ROWS.row(each), each[width + 1], each[width + 2]) for each in found[: query.limit])
        if len(found) <= query.limit or not runs:
            return RunPage(runs, total_count, None)
        last = found[query.limit - 1]
        return RunPage(runs, total_count, RunCursor(last[width], _ROWS.row(last).run_id))

    async def get(self, run_id: str, *, now: datetime) -> RunSummaryRow | None:
        """The run with its checkpoints counted; None if it is not in this catalog."""
        where = [_RUNS.run_id == run_id]
        found = await self._database.read(_statement(RunQuery(limit=1), where, now))
        width = len(_ROWS.columns)
        return RunSummaryRow(_ROWS.row(found[0]), found[0][width + 1], found[0][width + 2]) if found else None

    async def count_by_state(self, owner: str | None, *, but: Collection[str] = ()) -> dict[RunState, int]:
        """How many runs are in each state of the catalog, without those in ``but``; of all users when None."""
        query = select(_RUNS.state, func.count()).where(_RUNS.run_id.not_in(list(but))).group_by(_RUNS.state)
        if owner is not None:
            query = query.where(_RUNS.owner == owner)
        found: dict[RunState, int] = dict(await self._database.read(query))  # type: ignore[arg-type]  # rows are pairs
        return found

    async def list_lost(self, *, since: datetime, per_owner: int, limit: int) -> tuple[RunRow, ...]:
        """Lost runs that had trained and were used since then, the last used first; of each owner the last used."""
        where = (_RUNS.state == "lost", _RUNS.last_request_at >= since, or_(_RUNS.steps > 0, _RUNS.tokens > 0))
        return await _ROWS.read_newest_of_each(
            self._database, "owner", "last_request_at", *where, count=per_owner, limit=limit
        )

    async def list_children(self, run_ids: Sequence[str], *, owner: str | None, limit: int) -> tuple[RunRow, ...]:
        """Runs that were made from a checkpoint of one of these runs, oldest first; of all users when None."""
        found: list[RunRow] = []
        for start in range(0, len(run_ids), _PARENTS):
            prefixes = [f"tinker://{run_id}/" for run_id in run_ids[start : start + _PARENTS]]
            is_child = or_(false(), *(_RUNS.parent.startswith(prefix, autoescape=True) for prefix in prefixes))
            query = select(*_ROWS.columns).where(is_child).order_by(_RUNS.created_at, _RUNS.run_id).limit(limit)
            rows = await _ROWS.read(self._database, query if owner is None else query.where(_RUNS.owner == owner))
            found += [row for row in rows if (row.parent or "").startswith(tuple(prefixes))]  # LIKE may ignore case
        return tuple(found[:limit])


def _statement(query: RunQuery, conditions: Sequence[ColumnElement[bool]], now: datetime) -> Select[Any]:
    # One row more than the limit shows whether a page follows. Checkpoints are counted for this page only.
    value = _sort_value(query.order, now)
    after = true() if query.cursor is None else _comes_after(query, value, query.cursor)
    page = (
        select(*_ROWS.columns, value.label("sort_value"))
        .where(*conditions, after)
        .order_by(*_order(query, value, _RUNS.run_id))
        .limit(query.limit + 1)
        .subquery("page")
    )
    checkpoints = tables.checkpoints.c
    kept = select().where(checkpoints.run_id == page.c.run_id, is_visible(now))
    count = kept.add_columns(func.count()).scalar_subquery()
    size = kept.add_columns(cast(func.coalesce(func.sum(checkpoints.size_bytes), 0), BigInteger)).scalar_subquery()
    outer = select(*_ROWS.columns_of(page), page.c.sort_value, count, size)
    return outer.order_by(*_order(query, page.c.sort_value, page.c.run_id))


def _sort_value(order: RunOrder, now: datetime) -> ColumnElement[Any]:  # Any: columns are of all types
    match order:
        case "created":
            return _RUNS.created_at
        case "last_request":
            return _RUNS.last_request_at
        case "step":
            return _RUNS.steps
        case "loss":
            return _RUNS.last_loss
        case "tokens":
            return _RUNS.tokens
        case "owner":
            return _RUNS.owner
        case "base_model":
            return _RUNS.base_model
        case "bytes":
            checkpoints = tables.checkpoints.c
            kept = select(cast(func.coalesce(func.sum(checkpoints.size_bytes), 0), BigInteger))
            return kept.where(checkpoints.run_id == _RUNS.run_id, is_visible(now)).scalar_subquery()


def _order(query: RunQuery, value: ColumnElement[Any], run_id: ColumnElement[str]) -> tuple[ColumnElement[Any], ...]:
    """Runs without a value come last, in either direction."""
    if query.is_descending:
        return value.is_(None), value.desc(), run_id.desc()
    return value.is_(None), value.asc(), run_id.asc()


def _comes_after(query: RunQuery, value: ColumnElement[Any], cursor: RunCursor) -> ColumnElement[bool]:
    run_id, last = _RUNS.run_id, cursor.last_value
    is_next_id = run_id < cursor.last_run_id if query.is_descending else run_id > cursor.last_run_id
    if last is None:
        return and_(value.is_(None), is_next_id)
    is_next_value = value < last if query.is_descending else value > last
    return or_(value.is_(None), is_next_value, and_(value == last, is_next_id))


def _conditions(query: RunQuery) -> list[ColumnElement[bool]]:
    conditions: list[ColumnElement[bool]] = []
    if query.owner is not None:
        conditions.append(_RUNS.owner == query.owner)
    if query.states is not None:
        is_stored = and_(_RUNS.state.in_(query.states), _RUNS.run_id.not_in(list(query.live)))
        conditions.append(or_(_RUNS.run_id.in_(list(query.matching)), is_stored))
    words = (query.text or "").split()[:_WORDS]
    return [*conditions, *(or_(*(_has_word(column, word) for column in _SEARCHED)) for word in words)]


def _has_word(column: ColumnElement[Any], word: str) -> ColumnElement[bool]:
    """In any case; of letters beyond ASCII only as it is written, because databases disagree on lower()."""
    return or_(column.contains(word, autoescape=True), func.lower(column).contains(word.lower(), autoescape=True))
