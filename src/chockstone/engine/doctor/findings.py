"""Findings: the differences between store and catalog."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from chockstone.catalog import CheckpointRow, TrashRow
from chockstone.engine.doctor.row_rebuild import Description


class FindingKind(StrEnum):
    """In the order in which they are reported and repaired."""

    STUCK = "stuck"  # an unfinished save that no server will finish
    MISSING = "missing"  # a row without bytes
    DAMAGED = "damaged"  # a row that says ready of an archive that is not
    SWAPPED = "swapped"  # a row whose place in the store has another archive, sound as it may be
    KNOWN_DAMAGED = "known_damaged"  # a row that says damaged, and rightly so
    HEALED = "healed"  # a row that says damaged of an archive that is whole
    UNREADABLE = "unreadable"  # an archive that the disk cannot read: its state is unknown
    MISSIZED = "missized"  # a row with another size than its archive's
    OVERDUE = "overdue"  # trash that ought to be gone
    EMPTY_TRASH = "empty_trash"  # trash without bytes
    ORPHAN = "orphan"  # an archive without a row that says which checkpoint it is
    RIVAL = "rival"  # the same, but another archive has its name
    STRAY = "stray"  # an archive without a row that does not say what it is
    EPHEMERAL = "ephemeral"  # weights of a sampler whose session is over
    RECOVERY = "recovery"  # a recovery archive of a run that is over
    JOURNAL = "journal"  # a journal of a run that is over
    PARTIAL = "partial"  # what an interrupted write left
    EMPTY_DIRECTORY = "empty_directory"

    @property
    def is_harmless(self) -> bool:
        """Left by ordinary deletes; nothing needs to be done about it."""
        return self is FindingKind.EMPTY_DIRECTORY

    @property
    def may_be_momentary(self) -> bool:
        """Whether a server at work looks so between two of its steps."""
        return self not in (
            FindingKind.DAMAGED,
            FindingKind.SWAPPED,
            FindingKind.KNOWN_DAMAGED,
            FindingKind.HEALED,
            FindingKind.UNREADABLE,
        )


@dataclass(frozen=True, slots=True)
class Finding:
    kind: FindingKind
    subject: str  # a checkpoint's path, an archive's name, or a place in the file system
    size_bytes: int = 0
    detail: str = ""
    checkpoint: CheckpointRow | None = None
    trash: TrashRow | None = None
    description: Description | None = None

    @property
    def key(self) -> tuple[FindingKind, str]:
        return self.kind, self.subject


@dataclass(frozen=True, slots=True)
class Examination:
    findings: tuple[Finding, ...]
    checkpoints: int  # that the catalog has published
    archives: int
    size_bytes: int  # of all archives
    saves_under_way: int
    trash: int
    verified: frozenset[int]  # save ids of those that were read in full and are good
    unsealed: Mapping[int, str] = field(default_factory=dict)  # save id → seal, for rows without one

    @property
    def problems(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if not finding.kind.is_harmless)
