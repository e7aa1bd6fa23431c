"""Sweeps, as they are told: what goes and what stays, each with its reason."""

from __future__ import annotations

from chockstone.engine.sweeper import SweepReport
from chockstone.wire.storage import KeptCheckpoint, SweepResponse, SweptCheckpoint


def describe(report: SweepReport) -> SweepResponse:
    return SweepResponse(
        removed=[
            SweptCheckpoint(tinker_path=swept.path, size_bytes=swept.size_bytes, reason=swept.reason)
            for swept in report.removed
        ],
        kept=[KeptCheckpoint(tinker_path=kept.path, reasons=list(kept.reasons)) for kept in report.kept],
        freed_bytes=report.freed_bytes,
        dry_run=report.dry_run,
    )
