"""Compare: the curves of several runs in one chart, and the settings in which the runs differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Final
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request, Response

from chockstone.api.context import Context, ContextDep
from chockstone.api.operations.runs import get_operated_run, list_all_runs
from chockstone.api.users import Caller, CallerDep
from chockstone.console.formatting import short_run
from chockstone.console.pages.run import flatten
from chockstone.console.views import ViewsDep
from chockstone.wire.messages.operations.runs import OperatedRun, OperatedRunResponse

routes = APIRouter()
MOST_RUNS: Final = 8  # as many as there are colours
_OFFERED: Final = 8
RunIds = Annotated[list[str], Query(max_length=100)]


@dataclass(frozen=True, slots=True)
class SettingDifference:
    """A setting that is not the same in all compared runs."""

    name: str
    values: Sequence[str]  # one for each run


@dataclass(frozen=True, slots=True)
class Comparison:
    runs: Sequence[OperatedRunResponse]
    differences: Sequence[SettingDifference]

    @property
    def run_ids(self) -> list[str]:
        return [run.run_id for run in self.runs]

    @property
    def is_full(self) -> bool:
        return len(self.runs) >= MOST_RUNS

    def without(self, run_id: str) -> str:
        return _query([each for each in self.run_ids if each != run_id])

    def with_run(self, run_id: str) -> str:
        return _query([*self.run_ids, run_id])


@routes.get("/compare")
async def show(
    request: Request,
    context: ContextDep,
    caller: CallerDep,
    views: ViewsDep,
    run: RunIds = [],  # noqa: B006  # FastAPI copies it
) -> Response:
    comparison = await look(context, caller, run)
    offered = await _offered(context, caller, comparison, "")
    return await views.page(request, "compare", comparison=comparison, offered=offered)


@routes.get("/compare/offered")
async def offered_runs(
    request: Request,
    context: ContextDep,
    caller: CallerDep,
    views: ViewsDep,
    run: RunIds = [],  # noqa: B006  # FastAPI copies it
    query: Annotated[str, Query(max_length=200)] = "",
) -> Response:
    """Runs to add, by the words that were typed."""
    comparison = await look(context, caller, run)
    offered = await _offered(context, caller, comparison, query.strip())
    return await views.part(request, "compare_offered", comparison=comparison, offered=offered)


async def look(context: Context, caller: Caller, run_ids: Sequence[str]) -> Comparison:
    """Of more runs than there are colours, the first ones. Raises RowMissing for a run that the caller may not see."""
    chosen = list(dict.fromkeys(run_ids))[:MOST_RUNS]
    runs = [await get_operated_run(run_id, context, caller) for run_id in chosen]
    return Comparison(runs, differences_of(runs))


def differences_of(runs: Sequence[OperatedRunResponse]) -> list[SettingDifference]:
    facts = [
        {
            "base model": run.base_model,
            "parent": "" if run.parent is None else _short_path(run.parent),
            **dict(flatten(run.spec)),
            **dict(flatten(run.optimizer, "optimizer.")),
            **{f"metadata {name}": value for name, value in run.user_metadata.items()},
        }
        for run in runs
    ]
    names = dict.fromkeys(name for each in facts for name in each)
    rows = [SettingDifference(name, [each.get(name, "") for each in facts]) for name in names]
    return [row for row in rows if len(set(row.values)) > 1]


async def _offered(context: Context, caller: Caller, comparison: Comparison, query: str) -> Sequence[OperatedRun]:
    found = await list_all_runs(
        context, caller, query=query or None, sort="-last_request", limit=_OFFERED + len(comparison.runs)
    )
    return [run for run in found.runs if run.run_id not in comparison.run_ids][:_OFFERED]


def _short_path(path: str) -> str:
    run_id, _, rest = path.removeprefix("tinker://").partition("/")
    return f"{short_run(run_id)}/{rest}"


def _query(run_ids: Sequence[str]) -> str:
    return "?" + urlencode([("run", run_id) for run_id in run_ids])
