"""Receipts: what exactly a restore took from a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from chockstone.checkpoints.reading.archive import Archive, Verify


@dataclass(frozen=True, slots=True)
class RestoredPart:
    """One thing that was restored, e.g. ``model`` or ``optimizer``."""

    path: str
    what: str  # the type it went into
    tensors: int
    size_bytes: int
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Restored:
    """What a restore did."""

    parts: tuple[RestoredPart, ...]
    missing: tuple[str, ...]  # wanted by the target, not in the archive
    unexpected: tuple[str, ...]  # in the archive, no place in the target


@dataclass(frozen=True, slots=True)
class SkippedCandidate:
    """A checkpoint that could not be used, and why."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class RestoreReceipt:
    """What a restore did: the checkpoint, each restored part, and the checkpoints it skipped. Print it to see all."""

    name: str
    url: str
    kind: str
    step: int | None
    created_at: datetime
    parts: tuple[RestoredPart, ...]
    missing: tuple[str, ...]  # wanted by the target, not in the archive
    unexpected: tuple[str, ...]  # in the archive, no place in the target
    size_bytes: int
    verify: Verify
    blocks_verified: int
    blocks: int
    seconds: float
    skipped: tuple[SkippedCandidate, ...] = ()
    steps_lost: int | None = 0  # behind the newest that was saved; None: how far that had come cannot be read

    @classmethod
    def of(
        cls,
        archive: Archive,
        restored: Restored,
        *,
        name: str,
        url: str,
        seconds: float,
        skipped: tuple[SkippedCandidate, ...] = (),
        steps_lost: int | None = 0,
    ) -> RestoreReceipt:
        manifest = archive.manifest
        return cls(
            name=name,
            url=url,
            kind=manifest.kind,
            step=manifest.step,
            created_at=manifest.created_at,
            parts=restored.parts,
            missing=restored.missing,
            unexpected=restored.unexpected,
            size_bytes=archive.size,
            verify=archive.verify_policy,
            blocks_verified=archive.blocks_verified,
            blocks=archive.layout.block_count,
            seconds=seconds,
            skipped=skipped,
            steps_lost=steps_lost,
        )

    @property
    def complete(self) -> bool:
        """Whether archive and target had the same parts; False is possible with ``strict=False`` only."""
        return not self.missing and not self.unexpected

    def __str__(self) -> str:
        lines = [f"restored {self.name} (step {self.step}, {self.created_at:%Y-%m-%d %H:%M:%S} UTC) from {self.url}"]
        width = max((len(part.path) for part in self.parts), default=0)
        for part in self.parts:
            detail = f"  {part.detail}" if part.detail else ""
            tensors = f", {part.tensors} tensors, {_size(part.size_bytes)}" if part.tensors else ""
            lines.append(f"  {part.path:<{width}}  {part.what}{tensors}{detail}")
        lines += [f"  missing     {path}" for path in self.missing]
        lines += [f"  unexpected  {path}" for path in self.unexpected]
        lines += [f"  skipped     {skipped.name}: {skipped.reason}" for skipped in self.skipped]
        if self.skipped:
            lines.append(f"  steps lost  {'unknown' if self.steps_lost is None else self.steps_lost}")
        checked = f"{self.blocks_verified} of {self.blocks} blocks verified ({self.verify})"
        lines.append(f"  {_size(self.size_bytes)} in {self.seconds:.3f} s, {checked}")
        return "\n".join(lines)


def _size(size_bytes: int) -> str:
    number = float(size_bytes)
    for unit in ("bytes", "kB", "MB"):
        if number < 1000:
            return f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:.3g} GB"
