"""The doctor: differences between the store and the catalog, found in the background, for admins."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Final

from fastapi import Query

from chockstone.api.context import ContextDep
from chockstone.api.routes import Routes
from chockstone.api.users import CallerDep
from chockstone.engine.doctor.explanations import EXPLANATIONS
from chockstone.engine.doctor.findings import Finding
from chockstone.wire.messages.operations.doctor import DoctorFinding, DoctorResponse, ExaminationState

routes = Routes(tags=["administration"])
_SHOWN: Final = 1000


@routes.get("/doctor", summary="Show differences between store and catalog")
async def doctor(
    context: ContextDep,
    caller: CallerDep,
    refresh: Annotated[bool, Query(description="examine again, unless the last time was seconds ago")] = False,
) -> DoctorResponse:
    """The findings of the last examination, for admins. It changes nothing; ``chockstone doctor --fix`` repairs.

    The first request starts an examination in the background and answers at once; ask again for its findings. They
    are kept for an hour. An examination reads the head of every archive, and not all bytes.
    """
    context.require_admin(caller, "see the doctor's findings")
    report = context.status.doctor.report(refresh=refresh)
    found = report.examination
    state: ExaminationState = "running" if report.is_running else "done" if report.failure is None else "failed"
    return DoctorResponse(
        state=state,
        started_at=report.started_at,
        examined_at=report.examined_at,
        seconds=report.seconds,
        failure=report.failure,
        is_healthy=None if found is None else not found.problems,
        checkpoints=None if found is None else found.checkpoints,
        archives=None if found is None else found.archives,
        size_bytes=None if found is None else found.size_bytes,
        counts={} if found is None else dict(Counter(each.kind.value for each in found.findings)),
        findings=[] if found is None else [_finding(each) for each in found.findings[:_SHOWN]],
    )


def _finding(found: Finding) -> DoctorFinding:
    words = EXPLANATIONS[found.kind]
    return DoctorFinding(
        kind=found.kind.value,
        title=words.one,
        subject=found.subject,
        size_bytes=found.size_bytes,
        detail=found.detail,
        cause=words.cause,
        remedy=words.remedy,
        is_harmless=found.kind.is_harmless,
    )
