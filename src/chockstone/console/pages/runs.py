"""Runs: all runs that a user may see, searched, filtered and sorted by the catalog, a page at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Final, get_args
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, Query, Request, Response

from chockstone.api.context import Context, ContextDep
from chockstone.api.operations.runs import list_all_runs
from chockstone.api.status.run_states import count_by_state
from chockstone.api.users import Caller, CallerDep
from chockstone.console.live import LiveDep, Parts
from chockstone.console.views import ViewsDep
from chockstone.wire.messages.operations.runs import OperatedRun, OperatedRunState, RunSort

routes = APIRouter()
_PAGE: Final = 50
_DEFAULT_SORT: Final = "-last_request"
_STATES: Final[tuple[OperatedRunState, ...]] = get_args(OperatedRunState)
_SORTS: Final[tuple[str, ...]] = get_args(RunSort)
_ASCENDING_FIRST: Final = frozenset({"owner", "base_model", "loss"})


@dataclass(frozen=True, slots=True)
class RunFilter:
    """What the page's URL asks for."""

    query: str = ""
    state: str = ""  # empty: all
    owner: str = ""  # empty: all that the user may see
    sort: str = _DEFAULT_SORT
    cursor: str = ""

    @property
    def key(self) -> str:
        return self.sort.removeprefix("-")

    @property
    def is_descending(self) -> bool:
        return self.sort.startswith("-")

    @property
    def is_narrow(self) -> bool:
        return bool(self.query or self.state or self.owner)

    def url(self, key: str) -> str:
        """Sorted by this column, or the other way round."""
        if key == self.key:
            return self.with_(sort=key if self.is_descending else f"-{key}")
        return self.with_(sort=key if key in _ASCENDING_FIRST else f"-{key}")

    def with_(self, **changes: str) -> str:
        """The query of a URL. Every change but that of the cursor leads to the first page."""
        values = {"query": self.query, "state": self.state, "owner": self.owner, "sort": self.sort, **changes}
        default = {"sort": _DEFAULT_SORT}
        return "?" + urlencode({name: value for name, value in values.items() if value != default.get(name, "")})


@dataclass(frozen=True, slots=True)
class RunsPage:
    runs: Sequence[OperatedRun]
    total: int
    next_url: str | None
    filter: RunFilter
    counts: Sequence[tuple[str, int]]  # by state, of all runs of the scope

    @property
    def is_first(self) -> bool:
        return not self.filter.cursor


def _filter(
    query: Annotated[str, Query(max_length=200)] = "",
    state: Annotated[str, Query(max_length=20)] = "",
    owner: Annotated[str, Query(max_length=255)] = "",
    sort: Annotated[str, Query(max_length=20)] = _DEFAULT_SORT,
    cursor: Annotated[str, Query(max_length=1000)] = "",
) -> RunFilter:
    """Values that no link of the page has are ignored."""
    return RunFilter(
        query=query.strip(),
        state=state if state in _STATES else "",
        owner=owner.strip(),
        sort=sort if sort in _SORTS else _DEFAULT_SORT,
        cursor=cursor,
    )


FilterDep = Annotated[RunFilter, Depends(_filter)]


@routes.get("/runs")
async def show(
    request: Request, context: ContextDep, caller: CallerDep, views: ViewsDep, chosen: FilterDep
) -> Response:
    page = await look(context, caller, chosen)
    if request.headers.get("hx-target") == "runs":
        return await views.part(request, "runs_table", listed=page)
    return await views.page(request, "runs", live=f"/live/runs{_same(chosen)}", listed=page)


@routes.get("/live/runs")
async def follow(
    request: Request, context: ContextDep, caller: CallerDep, views: ViewsDep, live: LiveDep, chosen: FilterDep
) -> Response:
    async def render() -> Parts:
        return {"runs_table": await views.piece(request, "runs_table", listed=await look(context, caller, chosen))}

    return live.stream(request, caller, render, key=("runs", chosen))


async def look(context: Context, caller: Caller, chosen: RunFilter) -> RunsPage:
    found = await list_all_runs(
        context,
        caller,
        owner=chosen.owner or None,
        state=[chosen.state] if chosen.state else None,  # type: ignore[list-item]  # one of ``_STATES``
        query=chosen.query or None,
        sort=chosen.sort,  # type: ignore[arg-type]  # one of ``_SORTS``
        cursor=chosen.cursor or None,
        limit=_PAGE,
    )
    counts = await count_by_state(context.engine, context.scope(caller, chosen.owner or None))
    return RunsPage(
        runs=found.runs,
        total=found.total_count,
        next_url=None if found.cursor is None else chosen.with_(cursor=found.cursor),
        filter=chosen,
        counts=[(state, counts.get(state, 0)) for state in _STATES if counts.get(state)],
    )


def _same(chosen: RunFilter) -> str:
    return chosen.with_(cursor=chosen.cursor)
