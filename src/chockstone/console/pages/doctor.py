"""The doctor: differences between store and catalog, with the command that repairs each kind. Read-only, for admins."""

from __future__ import annotations

import shlex
from collections import defaultdict
from dataclasses import dataclass
from typing import Any, Final

from fastapi import APIRouter, Request, Response

from chockstone.api.context import Context, ContextDep
from chockstone.api.operations import doctor as api
from chockstone.api.users import Caller, CallerDep
from chockstone.console.views import AdminOnly, ViewsDep
from chockstone.engine.doctor.findings import FindingKind
from chockstone.wire.messages.operations.doctor import DoctorFinding, DoctorResponse

routes = APIRouter(prefix="/doctor", dependencies=[AdminOnly])
_SHOWN: Final = 100  # findings of each kind
_WITHOUT_REPAIR: Final = frozenset({FindingKind.UNREADABLE, FindingKind.EMPTY_DIRECTORY})
_FURTHER_FLAGS: Final = {
    FindingKind.KNOWN_DAMAGED: "--remove-damaged",
    FindingKind.RIVAL: "--remove-orphans",
    FindingKind.STRAY: "--remove-orphans",
}


@dataclass(frozen=True, slots=True)
class FindingGroup:
    kind: str
    title: str
    cause: str
    remedy: str
    is_harmless: bool
    command: str | None  # to copy; None: there is no repair
    findings: tuple[DoctorFinding, ...]


@routes.get("")
async def show(request: Request, context: ContextDep, caller: CallerDep, views: ViewsDep) -> Response:
    return await views.page(request, "doctor", **await examination(context, caller))


@routes.get("/examination")
async def show_examination(request: Request, context: ContextDep, caller: CallerDep, views: ViewsDep) -> Response:
    """The findings so far, which a page asks for while an examination runs."""
    return await views.part(request, "examination", **await examination(context, caller))


@routes.post("/examination")
async def examine_again(request: Request, context: ContextDep, caller: CallerDep, views: ViewsDep) -> Response:
    return await views.part(request, "examination", **await examination(context, caller, refresh=True))


async def examination(
    context: Context, caller: Caller, *, refresh: bool = False
) -> dict[str, Any]:  # Any: values of the template
    found = await api.doctor(context, caller, refresh=refresh)
    place = f"--data {shlex.quote(str(context.config.data))}"
    if context.config.database is not None:
        place += ' --database "$CHOCKSTONE_DATABASE"'  # its URL has a password in it
    groups = group_findings(found, place)
    return {"found": found, "groups": groups, "problems": sum(not each.is_harmless for each in found.findings)}


def group_findings(found: DoctorResponse, place: str) -> list[FindingGroup]:
    """By kind, in the order of the repairs; harmless ones last. ``place``: options that name the data directory."""
    by_kind: defaultdict[str, list[DoctorFinding]] = defaultdict(list)
    for finding in found.findings:
        by_kind[finding.kind].append(finding)
    groups = [
        FindingGroup(
            kind=kind,
            title=f"{found.counts.get(kind, len(findings)):,} × {findings[0].title}",
            cause=findings[0].cause,
            remedy=findings[0].remedy,
            is_harmless=findings[0].is_harmless,
            command=repair_command(kind, place),
            findings=tuple(findings[:_SHOWN]),
        )
        for kind, findings in by_kind.items()
    ]
    return sorted(groups, key=lambda group: group.is_harmless)


def repair_command(kind: str, place: str) -> str | None:
    """A dry run that changes nothing, and the repair; None: there is no repair."""
    if kind in _WITHOUT_REPAIR:
        return None
    flags = " ".join(["--fix", *([_FURTHER_FLAGS[FindingKind(kind)]] if kind in _FURTHER_FLAGS else [])])
    command = f"chockstone doctor {place} {flags}"
    return f"{command} --dry-run\n{command}"
