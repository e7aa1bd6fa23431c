"""The audit: who did what to which checkpoint, run or key, newest first. Users see their own, admins all."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Final
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request, Response

from chockstone.api.context import Context, ContextDep
from chockstone.api.users import Caller, CallerDep
from chockstone.catalog import AuditRow
from chockstone.catalog.searches.audit_search import AuditCursor, AuditQuery
from chockstone.console.formatting import duration, size
from chockstone.console.views import ViewsDep
from chockstone.wire.failures import BadRequest

routes = APIRouter(prefix="/audit")
_PAGE: Final = 100
_LONGEST_DETAIL: Final = 300
_EVENTS: Final = {"checkpoint_ttl_set": "Expiry set", "checkpoint_restored": "Checkpoint undeleted"}
_NAMES: Final = {"size_bytes": "size", "ttl_seconds": "expires after", "key_sha256": "digest of the key"}
ACTIONS: Final = (  # beginning of the event's name, label
    ("", "All actions"),
    ("checkpoint_saved", "Saves"),
    ("checkpoint_read", "Reads"),
    ("checkpoint_deleted", "Deletes"),
    ("checkpoint_restored", "Undeletes"),
    ("checkpoint_removed", "Removals by rules"),
    ("checkpoint_expired", "Expiries"),
    ("checkpoint_published", "Publications"),
    ("checkpoint_", "Everything on checkpoints"),
    ("run_", "Runs"),
    ("key_", "Keys"),
)


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """Empty text: no condition."""

    user: str
    run: str
    action: str

    @property
    def is_narrow(self) -> bool:
        return bool(self.user or self.run or self.action)


@dataclass(frozen=True, slots=True)
class AuditView:
    at: datetime
    event: str
    words: str
    by: str | None
    owner: str
    run_id: str | None
    path: str | None
    checkpoint: str | None  # kind and name
    details: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class AuditList:
    entries: tuple[AuditView, ...]
    next_query: str | None  # of the URL of the next page; None: this is the last


@routes.get("")
async def show(
    request: Request,
    context: ContextDep,
    caller: CallerDep,
    views: ViewsDep,
    user: Annotated[str, Query(max_length=255)] = "",
    run: Annotated[str, Query(max_length=255)] = "",
    action: Annotated[str, Query(max_length=60)] = "",
    cursor: Annotated[str | None, Query(max_length=100)] = None,
) -> Response:
    wanted = AuditFilter(*(text.strip().replace("\0", "") for text in (user, run, action)))
    found = await find(context, caller, wanted, cursor)
    if "hx-request" in request.headers and "hx-history-restore-request" not in request.headers:
        name = "audit_results" if cursor is None else "audit_entries"
        return await views.part(request, name, wanted=wanted, found=found)
    return await views.page(request, "audit", wanted=wanted, found=found, actions=ACTIONS)


async def find(context: Context, caller: Caller, wanted: AuditFilter, cursor: str | None) -> AuditList:
    await context.engine.audit.flush()
    query = AuditQuery(
        owner=context.scope_of(caller),
        user=wanted.user or None,
        run_id=wanted.run or None,
        event=wanted.action or None,
        limit=_PAGE,
        cursor=None if cursor is None else read_cursor(cursor),
    )
    page = await context.catalog.audit_search.find(query)
    following = None
    if page.next_cursor is not None:
        at = f"{page.next_cursor.audit_id}~{page.next_cursor.at.isoformat()}"
        values = {"user": wanted.user, "run": wanted.run, "action": wanted.action, "cursor": at}
        following = urlencode({name: value for name, value in values.items() if value})
    return AuditList(tuple(map(describe, page.rows)), following)


def describe(row: AuditRow) -> AuditView:
    details = {_NAMES.get(name, name): _shown(name, value) for name, value in row.details.items() if name != "by"}
    if row.purpose is not None:
        details["purpose"] = row.purpose
    by = row.details.get("by")
    return AuditView(
        at=row.at,
        event=row.event,
        words=_EVENTS.get(row.event, row.event.replace("_", " ").capitalize()),
        by=None if by is None else str(by),
        owner=row.owner,
        run_id=row.run_id,
        path=row.path,
        checkpoint=None if row.path is None else row.path.removeprefix("tinker://").partition("/")[2] or row.path,
        details=tuple(details.items()),
    )


def read_cursor(text: str) -> AuditCursor:
    """Raises BadRequest."""
    audit_id, _, moment = text.partition("~")
    try:
        number, at = int(audit_id), datetime.fromisoformat(moment)
        if at.tzinfo is None or not 0 <= number < 2**63:
            raise ValueError
    except ValueError:
        raise BadRequest("the list's cursor cannot be read; load the page again") from None
    return AuditCursor(at, number)


def _shown(name: str, value: object) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        if name.endswith("_bytes"):
            return size(value)
        if name.endswith("_seconds"):
            return duration(value)
    text = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
    return text if len(text) <= _LONGEST_DETAIL else f"{text[:_LONGEST_DETAIL]}…"
