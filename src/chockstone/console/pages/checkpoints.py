"""Checkpoints: a filtered list a page at a time, the tree of runs by lineage, and what can be done to a checkpoint.

Every action calls the function that answers the same request to the API, and returns the changed row of the list.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, HTTPException, Query, Request, Response
from fastapi.responses import RedirectResponse

from chockstone.api.context import Context, ContextDep
from chockstone.api.operations.disk.trash import undelete
from chockstone.api.tinker import checkpoints as api
from chockstone.api.users import Caller, CallerDep
from chockstone.catalog import CheckpointRow, RowMissing
from chockstone.catalog.searches.checkpoint_search import CheckpointCursor, CheckpointOrder, CheckpointQuery
from chockstone.console.forms import read_form
from chockstone.console.pages.checkpoint_tree import make_tree
from chockstone.console.pins import is_pinned, pin, unpin
from chockstone.console.units import read_amount
from chockstone.console.views import Views, ViewsDep
from chockstone.wire.failures import BadRequest
from chockstone.wire.messages.checkpoints import SetTtlRequest
from chockstone.wire.messages.storage import UndeleteRequest
from chockstone.wire.paths import Kind, TinkerPath, check_run_id

routes = APIRouter(prefix="/checkpoints")
_ONE: Final = "/{run_id}/{kind}/{name}"
_PAGE: Final = 50
_MOST_WORDS: Final = 8
ORDERS: Final[Mapping[CheckpointOrder, str]] = {
    "newest": "Newest first",
    "oldest": "Oldest first",
    "largest": "Largest first",
    "smallest": "Smallest first",
    "name": "By name",
    "step": "By step, highest first",
    "expiry": "Expiring first",
}
KINDS: Final[Mapping[str, str]] = {
    "weights": "Training state",
    "sampler_weights": "Sampler weights",
    "external_weights": "Exported weights",
}
Whose = Literal["mine", "public", "all"]


@dataclass(frozen=True, slots=True)
class CheckpointFilter:
    """What the list shows. Empty text: no condition."""

    whose: Whose
    query: str = ""
    kind: Literal["", "weights", "sampler_weights", "external_weights"] = ""
    state: Literal["", "ready", "damaged", "expiring"] = ""
    owner: str = ""  # for admins
    run: str = ""
    sort: CheckpointOrder = "newest"
    view: Literal["list", "tree"] = "list"

    @property
    def is_narrow(self) -> bool:
        return bool(self.query or self.kind or self.state or self.owner or self.run)

    def url_query(self, **changes: str) -> str:
        """The query of the URL of a list with these changes."""
        values = {
            "q": self.query,
            "kind": self.kind,
            "state": self.state,
            "owner": self.owner,
            "run": self.run,
            "sort": self.sort,
            "whose": self.whose,
            "view": self.view,
            **changes,
        }
        return urlencode({name: value for name, value in values.items() if value})


@dataclass(frozen=True, slots=True)
class CheckpointView:
    """A row of the list."""

    path: str
    run_id: str
    kind: str
    kind_label: str
    name: str
    owner: str
    base_model: str
    size_bytes: int
    step: int | None
    created_at: datetime
    expires_at: datetime | None
    verified_at: datetime | None
    public: bool
    damage: str | None
    is_pinned: bool
    is_own: bool
    sampler_gap: float | None  # in nats; None: not measured
    metadata: tuple[tuple[str, str], ...]
    commands: tuple[tuple[str, str], ...]  # label, code to copy
    url: str  # of its actions, below the console

    @property
    def element_id(self) -> str:
        """Of the row: letters and digits only."""
        return "c-" + "".join(c if c.isalnum() else f"_{ord(c):x}_" for c in self.path.removeprefix("tinker://"))


@dataclass(frozen=True, slots=True)
class CheckpointList:
    rows: tuple[CheckpointView, ...]
    total: int
    total_bytes: int
    next_query: str | None  # of the URL of the next page; None: this is the last


def read_filter(
    context: ContextDep,
    caller: CallerDep,
    q: Annotated[str, Query(max_length=200)] = "",
    kind: Literal["", "weights", "sampler_weights", "external_weights"] = "",
    state: Literal["", "ready", "damaged", "expiring"] = "",
    owner: Annotated[str, Query(max_length=255)] = "",
    run: Annotated[str, Query(max_length=255)] = "",
    sort: CheckpointOrder = "newest",
    whose: Whose | Literal[""] = "",
    view: Literal["list", "tree"] = "list",
) -> CheckpointFilter:
    """Admins see all users' checkpoints unless they ask for their own; others see their own."""
    is_admin = context.is_admin(caller)
    wanted = whose or ("all" if is_admin else "mine")
    if not is_admin and (wanted == "all" or owner):
        raise HTTPException(403, "only admins of this server see the checkpoints of all users")
    return CheckpointFilter(wanted, q.replace("\0", ""), kind, state, owner, run, sort, view)


FilterDep = Annotated[CheckpointFilter, Depends(read_filter)]
CursorText = Annotated[str | None, Query(max_length=600)]


@routes.get("")
async def show(
    request: Request,
    context: ContextDep,
    caller: CallerDep,
    views: ViewsDep,
    wanted: FilterDep,
    cursor: CursorText = None,
) -> Response:
    is_part = (
        request.headers.get("hx-request") is not None and request.headers.get("hx-history-restore-request") is None
    )
    if wanted.view == "tree":
        tree = await make_tree(context, caller.user_id if wanted.whose != "all" else wanted.owner or None)
        values: dict[str, Any] = {"wanted": wanted, "tree": tree, "found": None}  # Any: values of the template
    else:
        found = await find(context, caller, wanted, cursor)
        if is_part and cursor is not None:
            return await views.part(request, "checkpoint_rows", wanted=wanted, found=found)
        values = {"wanted": wanted, "tree": None, "found": found}
    if is_part:
        return await views.part(request, "checkpoint_results", **values)
    return await views.page(request, "checkpoints", orders=ORDERS, kinds=KINDS, **values)


@routes.get("/of-run/{run_id}")
async def show_run(run_id: str, request: Request, context: ContextDep, caller: CallerDep, views: ViewsDep) -> Response:
    """The checkpoints of one run, for the tree."""
    run = await context.run_row(check_run_id(run_id), None if context.is_admin(caller) else caller)
    query = CheckpointQuery(run_id=run.run_id, limit=_PAGE)
    page = await context.catalog.checkpoint_search.find(query, now=context.now())
    rows = await describe_all(context, caller, page.rows)
    return await views.part(request, "checkpoint_branch", rows=rows, total=page.matched.count, run_id=run.run_id)


@routes.get(_ONE + "/download")
async def download(
    run_id: str, kind: str, name: str, request: Request, context: ContextDep, caller: CallerDep
) -> Response:
    answer = await api.archive(run_id, kind, name, request, context, caller)
    return RedirectResponse(answer.headers["Location"], 303, {"Cache-Control": "no-store"})


@dataclass(frozen=True, slots=True)
class CheckpointAction:
    """A request that changes one checkpoint."""

    run_id: str
    kind: str
    name: str
    request: Request
    context: Context
    caller: Caller
    views: Views

    async def own_row(self) -> CheckpointRow:
        """Raises RowMissing for a checkpoint that the caller may not change."""
        return await self.context.own_checkpoint(TinkerPath.of(self.run_id, self.kind, self.name), self.caller)

    async def changed(self, notice: str) -> Response:
        """The row of the list as it is now, opened, with the notice."""
        path = TinkerPath.of(self.run_id, self.kind, self.name)
        [row] = await describe_all(self.context, self.caller, [await _visible(self.context, self.caller, path)])
        return await self.views.part(self.request, "checkpoint_row", row=row, is_open=True, notice=notice)


async def _action(
    run_id: str, kind: str, name: str, request: Request, context: ContextDep, caller: CallerDep, views: ViewsDep
) -> CheckpointAction:
    return CheckpointAction(run_id, kind, name, request, context, caller, views)


ActionDep = Annotated[CheckpointAction, Depends(_action)]


@routes.post(_ONE + "/publish")
async def publish(action: ActionDep) -> Response:
    await api.publish(action.run_id, action.kind, action.name, action.context, action.caller)
    return await action.changed("Published: every user can read it.")


@routes.post(_ONE + "/unpublish")
async def unpublish(action: ActionDep) -> Response:
    await api.unpublish(action.run_id, action.kind, action.name, action.context, action.caller)
    return await action.changed("Private again.")


@routes.post(_ONE + "/expire")
async def expire(action: ActionDep) -> Response:
    """Fields ``amount`` and ``unit``; an empty amount removes the expiry."""
    form = await read_form(action.request)
    seconds = read_amount(form, "amount", units="time")
    try:
        wanted = SetTtlRequest(ttl_seconds=None if seconds is None else round(seconds))
    except ValueError:
        raise BadRequest("an expiry is at least one second and at most some thousand years from now") from None
    await api.set_ttl(action.run_id, action.kind, action.name, wanted, action.context, action.caller)
    return await action.changed("Does not expire any more." if seconds is None else "Expiry set.")


@routes.post(_ONE + "/pin")
async def pin_one(action: ActionDep) -> Response:
    await pin(action.context, action.caller, await action.own_row())
    return await action.changed("Pinned: no retention rule removes it. The run has a policy of its own now.")


@routes.post(_ONE + "/unpin")
async def unpin_one(action: ActionDep) -> Response:
    await unpin(action.context, action.caller, await action.own_row())
    return await action.changed("Not pinned any more: retention rules apply.")


@routes.post(_ONE + "/verify")
async def verify(action: ActionDep) -> Response:
    found = await api.verify(action.run_id, action.kind, action.name, action.context, action.caller)
    return await action.changed(
        "Verified: every digest is right." if found.damage is None else f"Damaged: {found.damage}"
    )


@routes.post(_ONE + "/delete")
async def delete(action: ActionDep) -> Response:
    """Returns a row that says so, with an undo while the trash keeps the checkpoint."""
    context, row = action.context, await action.own_row()
    await api.delete_checkpoint(action.run_id, action.kind, action.name, context, action.caller)
    entry = await context.catalog.trash.find_save(row.save_id)
    [view] = await describe_all(context, action.caller, [row])
    return await action.views.part(action.request, "checkpoint_deleted", row=view, entry=entry, now=context.now())


@routes.post("/undo/{trash_id}")
async def undo(trash_id: int, request: Request, context: ContextDep, caller: CallerDep, views: ViewsDep) -> Response:
    if not 0 <= trash_id < 2**63:
        raise RowMissing(f"trash entry {trash_id} is not yours or not there")
    undeleted = await undelete(trash_id, UndeleteRequest(), context, caller)
    path = TinkerPath.parse(undeleted.tinker_path)
    action = CheckpointAction(path.run_id, path.kind, path.name, request, context, caller, views)
    return await action.changed(
        "Undeleted." + (" Its expiry had passed and is removed." if undeleted.lost_expiry else "")
    )


async def find(context: Context, caller: Caller, wanted: CheckpointFilter, cursor: str | None) -> CheckpointList:
    query = CheckpointQuery(
        owner=_scope(wanted, caller),
        run_id=wanted.run or None,
        kinds=None if not wanted.kind else (wanted.kind,),
        state=wanted.state if wanted.state in ("ready", "damaged") else None,
        expires=True if wanted.state == "expiring" else None,
        public=True if wanted.whose == "public" else None,
        words=tuple(wanted.query.split()[:_MOST_WORDS]),
        order=wanted.sort,
        limit=_PAGE,
        cursor=None if cursor is None else read_cursor(cursor, wanted.sort),
    )
    page = await context.catalog.checkpoint_search.find(query, now=context.now())
    rows = await describe_all(context, caller, page.rows)
    next_query = None if page.next_cursor is None else wanted.url_query(cursor=write_cursor(page.next_cursor))
    return CheckpointList(rows, page.matched.count, page.matched.size_bytes, next_query)


async def describe_all(context: Context, caller: Caller, rows: Sequence[CheckpointRow]) -> tuple[CheckpointView, ...]:
    gaps = await api.sampler_gaps(context, rows)
    return tuple(_describe(context, caller, row, gaps.get(row.archive)) for row in rows)


def _describe(context: Context, caller: Caller, row: CheckpointRow, sampler_gap: float | None) -> CheckpointView:
    return CheckpointView(
        path=row.path,
        run_id=row.run_id,
        kind=row.kind,
        kind_label=KINDS[row.kind],
        name=row.name,
        owner=row.owner,
        base_model=row.base_model,
        size_bytes=row.size_bytes,
        step=row.step,
        created_at=row.created_at,
        expires_at=row.expires_at,
        verified_at=row.verified_at,
        public=row.public,
        damage=row.damage if row.state == "damaged" else None,
        is_pinned=is_pinned(context, row),
        is_own=row.owner == caller.user_id,
        sampler_gap=sampler_gap,
        metadata=tuple(sorted(row.user_metadata.items())),
        commands=commands_for(row),
        url=f"/checkpoints/{row.run_id}/{row.kind}/{row.name}",
    )


def commands_for(row: CheckpointRow) -> tuple[tuple[str, str], ...]:
    """How to use the checkpoint, to copy."""
    download_it = ("Download", f"chockstone checkpoints download {row.path}")
    match Kind(row.kind):
        case Kind.WEIGHTS:
            resume = f'training_client = service_client.create_training_client_from_state_with_optimizer("{row.path}")'
            return (
                ("Resume training", resume),
                ("Load into a run", f'training_client.load_state_with_optimizer("{row.path}").result()'),
                download_it,
            )
        case Kind.SAMPLER_WEIGHTS:
            use = f'sampling_client = service_client.create_sampling_client(model_path="{row.path}")'
            return ("Sample", use), download_it
        case Kind.EXTERNAL_WEIGHTS:
            return (download_it,)


def write_cursor(cursor: CheckpointCursor) -> str:
    value = cursor.value.isoformat() if isinstance(cursor.value, datetime) else str(cursor.value)
    return f"{cursor.save_id}~{value}"


def read_cursor(text: str, order: CheckpointOrder) -> CheckpointCursor:
    """Raises BadRequest for a cursor that is not of a list in this order."""
    save_id, _, value = text.partition("~")
    try:
        number = int(save_id)
        found = CheckpointCursor(_cursor_value(value, order), number)
    except ValueError:
        found = None
    if found is None or not 0 <= number < 2**63:
        raise BadRequest("the list's cursor is not of this order; load the page again")
    return found


def _cursor_value(value: str, order: CheckpointOrder) -> str | int | datetime:
    match order:
        case "name":
            return value.replace("\0", "")
        case "largest" | "smallest" | "step":
            number = int(value)
            if not -1 <= number < 2**63:
                raise ValueError
            return number
        case _:
            moment = datetime.fromisoformat(value)
            if moment.tzinfo is None:
                raise ValueError
            return moment


def _scope(wanted: CheckpointFilter, caller: Caller) -> str | None:
    """The owner whose checkpoints are listed; None: all users'. ``read_filter`` lets only admins see all of them."""
    if wanted.whose == "mine":
        return caller.user_id
    return wanted.owner or None


async def _visible(context: Context, caller: Caller, path: TinkerPath) -> CheckpointRow:
    """A checkpoint that the list shows to the caller."""
    try:
        return await context.readable(path, caller)
    except RowMissing:
        if not context.is_admin(caller):
            raise
    return await context.catalog.checkpoints.get(path.run_id, path.kind.value, path.name, now=context.now())
