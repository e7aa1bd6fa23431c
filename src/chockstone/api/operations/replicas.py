"""Replicas: lists the worker replicas; for admins, adds one and drains one."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated

from fastapi import Path

from chockstone.api.context import Context, ContextDep
from chockstone.api.routes import Routes
from chockstone.api.users import Caller, CallerDep
from chockstone.backends.protocol import WorkerMemory
from chockstone.catalog import RowMissing
from chockstone.engine.runs.recovery.membership import ReplicaMember, ReplicaMembership
from chockstone.wire.messages.operations.server import GpuReport, ReplicaReport, ReplicasResponse

routes = Routes(prefix="/replicas", tags=["administration"])
Number = Annotated[int, Path(ge=0, le=1_000_000, description="as in the list")]


@routes.get("", summary="List worker replicas")
async def list_replicas(context: ContextDep, _: CallerDep) -> ReplicasResponse:
    """The replicas with their state and runs. A replica that has left is not listed."""
    membership = context.engine.membership
    return ReplicasResponse(replicas=replica_reports(membership.members()), is_elastic=membership.is_elastic)


@routes.post("", summary="Add a worker replica")
async def add_replica(context: ContextDep, caller: CallerDep) -> ReplicaReport:
    """Begin to start one more worker with the settings of the others, for admins. It takes runs once it is ready.

    It gets the lowest number that is free.
    """
    context.require_admin(caller, "add replicas")
    context.refuse_when_stopping()
    return _noted(context, caller, await context.engine.membership.add(), "replica_added")


@routes.post("/{number}/drain", summary="Drain a worker replica")
async def drain_replica(number: Number, context: ContextDep, caller: CallerDep) -> ReplicaReport:
    """Begin to move the runs of a replica to others, for admins. Its worker ends when it holds nothing.

    Each run moves between two of its operations. The replica is not listed any more once it has left.
    """
    context.require_admin(caller, "drain replicas")
    context.refuse_when_stopping()
    _require(context, number)
    context.engine.membership.drain(number)
    return _noted(context, caller, number, "replica_drained")


@routes.post("/{number}/undrain", summary="Stop draining a worker replica")
async def undrain_replica(number: Number, context: ContextDep, caller: CallerDep) -> ReplicaReport:
    """Let a replica that is being drained stay, for admins. Runs that have moved stay where they are."""
    context.require_admin(caller, "drain replicas")
    _require(context, number)
    context.engine.membership.undrain(number)
    return _noted(context, caller, number, "replica_undrained")


def has_replicas(membership: ReplicaMembership) -> bool:
    """Whether there are several workers, or may be."""
    return membership.is_elastic or len(membership.members()) > 1


def replica_reports(members: Sequence[ReplicaMember]) -> list[ReplicaReport]:
    found = []
    for each in members:
        status = each.worker.status
        died_at = status.last_death_at
        report = ReplicaReport(
            number=each.number,
            state=status.phase,
            since=datetime.fromtimestamp(status.since, UTC),
            restarts=status.deaths,
            runs=each.runs,
            is_leaving=each.is_leaving,
            decoded_tokens=0 if status.sampler is None else status.sampler.decoded_tokens,
            memory_bytes=status.memory.resident_bytes,
            last_death=status.last_death,
            last_death_at=None if died_at is None else datetime.fromtimestamp(died_at, UTC),
            trouble=each.failure or each.worker.trouble,
            gpus=gpu_reports(status.memory),
        )
        found.append(report)
    return found


def gpu_reports(memory: WorkerMemory) -> list[GpuReport]:
    return [GpuReport(name=gpu.name, used_bytes=gpu.used_bytes, total_bytes=gpu.total_bytes) for gpu in memory.gpus]


def _require(context: Context, number: int) -> ReplicaMember:
    found = next((each for each in context.engine.membership.members() if each.number == number), None)
    if found is None:
        raise RowMissing(f"there is no replica {number}; `chockstone replicas ls` lists them")
    return found


def _noted(context: Context, caller: Caller, number: int, event: str) -> ReplicaReport:
    """With an entry in the audit of the caller."""
    context.engine.audit(event, owner=caller.user_id, details={"by": caller.user_id, "replica": number})
    [report] = replica_reports([_require(context, number)])
    return report
