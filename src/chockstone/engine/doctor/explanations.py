"""Explains each kind of finding of the doctor: what it is, what causes it and what repairs it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from chockstone.engine.doctor.findings import FindingKind


@dataclass(frozen=True, slots=True)
class Explanation:
    one: str
    many: str
    cause: str
    remedy: str  # what is done about it, and with which flag

    def title(self, count: int) -> str:
        return f"{count:,} {self.one if count == 1 else self.many}"


EXPLANATIONS: Final[Mapping[FindingKind, Explanation]] = {
    FindingKind.STUCK: Explanation(
        "unfinished save",
        "unfinished saves",
        "They were in progress when the server ended. No client got a success for them.",
        "--fix lists those whose archive is complete, after it checked every digest, and drops the others.",
    ),
    FindingKind.MISSING: Explanation(
        "checkpoint without bytes",
        "checkpoints without bytes",
        "The catalog lists them, and the store does not have their archives: files were deleted manually, or a disk "
        "was replaced. They cannot be loaded.",
        "--fix removes them from the catalog. To keep them, put the files back first.",
    ),
    FindingKind.DAMAGED: Explanation(
        "damaged checkpoint that the catalog calls ready",
        "damaged checkpoints that the catalog calls ready",
        "Their bytes changed after the save: a failing disk, or a file that was changed manually.",
        "--fix marks them as damaged, with the reason, and keeps the bytes; --fix --remove-damaged removes them.",
    ),
    FindingKind.SWAPPED: Explanation(
        "checkpoint with another archive in its place",
        "checkpoints with other archives in their places",
        "The archive is not the one that was saved: its seal differs from the one in the catalog. A file was "
        "overwritten, or restored under the wrong name.",
        "--fix marks them as damaged and keeps the bytes. To heal one, put its own archive back.",
    ),
    FindingKind.KNOWN_DAMAGED: Explanation(
        "checkpoint marked as damaged",
        "checkpoints marked as damaged",
        "An earlier check found that their bytes changed. `latest` skips them.",
        "--fix --remove-damaged removes them. To heal one, put a good copy of its archive into its place.",
    ),
    FindingKind.HEALED: Explanation(
        "checkpoint marked as damaged that is good",
        "checkpoints marked as damaged that are good",
        "All digests are right: the archive was put back, or an earlier read of the disk failed.",
        "--fix marks them as ready again.",
    ),
    FindingKind.UNREADABLE: Explanation(
        "checkpoint that cannot be read",
        "checkpoints that cannot be read",
        "The disk or the operating system returns an error for their bytes.",
        "No repair: check the disk, and the permissions of its files.",
    ),
    FindingKind.MISSIZED: Explanation(
        "size that differs",
        "sizes that differ",
        "The archive is good, and its size differs from the catalog, so quotas are wrong.",
        "--fix corrects the catalog.",
    ),
    FindingKind.OVERDUE: Explanation(
        "removed checkpoint that is still on the disk",
        "removed checkpoints that are still on the disk",
        "They were deleted, replaced or expired, and the server ended before their bytes were freed.",
        "--fix deletes them, as the next start of the server does.",
    ),
    FindingKind.EMPTY_TRASH: Explanation(
        "removed checkpoint that cannot be undeleted",
        "removed checkpoints that cannot be undeleted",
        "They are in the trash, and their archives are gone.",
        "--fix drops them from the trash.",
    ),
    FindingKind.ORPHAN: Explanation(
        "archive without a row",
        "archives without a row",
        "Their manifests name their checkpoints, and the catalog does not list them: the database was lost or is an "
        "older copy, or the server ended between writing the archive and its row.",
        "--fix and --rebuild list them again, private and without an expiry.",
    ),
    FindingKind.RIVAL: Explanation(
        "archive whose name is taken",
        "archives whose names are taken",
        "Their manifests name checkpoints that have another archive, the newer one if the catalog was lost: leftovers "
        "of a save that was to overwrite another.",
        "Kept. --fix --remove-orphans deletes them.",
    ),
    FindingKind.STRAY: Explanation(
        "archive without a checkpoint's name",
        "archives without a checkpoint's name",
        "No server wrote them in this form: they were copied here manually, or are too damaged to read.",
        "Kept. --fix --remove-orphans deletes them.",
    ),
    FindingKind.EPHEMERAL: Explanation(
        "unused weights of a sampler",
        "unused weights of samplers",
        "They were written for samplers whose sessions are over or unknown, and were never listed.",
        "--fix deletes them.",
    ),
    FindingKind.RECOVERY: Explanation(
        "unneeded recovery archive",
        "unneeded recovery archives",
        "They were written to recover runs that have ended, and were never listed.",
        "--fix deletes them, as the server does within the hour.",
    ),
    FindingKind.JOURNAL: Explanation(
        "journal of a run that is over",
        "journals of runs that are over",
        "The server ended between ending a run and deleting its journal.",
        "--fix deletes them, as the server does within the hour.",
    ),
    FindingKind.PARTIAL: Explanation(
        "unfinished write",
        "unfinished writes",
        "A process was killed while it wrote. They hold no checkpoint.",
        "--fix deletes them.",
    ),
    FindingKind.EMPTY_DIRECTORY: Explanation(
        "empty directory",
        "empty directories",
        "Deletions left them; they do no harm.",
        "--fix removes them.",
    ),
}
