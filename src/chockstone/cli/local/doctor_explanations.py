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
        "save without an end",
        "saves without an end",
        "They were under way when the server ended. Nobody was told that they succeeded.",
        "--fix publishes those whose archive is whole, every digest checked, and gives the others up.",
    ),
    FindingKind.MISSING: Explanation(
        "checkpoint without bytes",
        "checkpoints without bytes",
        "The catalog lists them and the store does not have their archives: files were deleted by hand, or a disk "
        "was replaced. They cannot be loaded.",
        "--fix removes them from the catalog. To keep them, put the files back first.",
    ),
    FindingKind.DAMAGED: Explanation(
        "damaged checkpoint that the catalog calls ready",
        "damaged checkpoints that the catalog calls ready",
        "Their bytes are not what was written: a failing disk, or a file that was changed by hand.",
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
        "Their bytes are not what was written, which was found before. `latest` passes over them.",
        "--fix --remove-damaged removes them. To heal one, put a good copy of its archive into its place.",
    ),
    FindingKind.HEALED: Explanation(
        "checkpoint marked as damaged that is whole",
        "checkpoints marked as damaged that are whole",
        "Every digest is right: the archive was put back, or the disk read wrongly that time.",
        "--fix marks them as ready again.",
    ),
    FindingKind.UNREADABLE: Explanation(
        "checkpoint that cannot be read",
        "checkpoints that cannot be read",
        "The disk or the system refuses the bytes, so nobody knows whether they are right.",
        "Nothing is done about them here: look at the disk and at the permissions of its files.",
    ),
    FindingKind.MISSIZED: Explanation(
        "size that differs",
        "sizes that differ",
        "The archive is sound and has another size than the catalog says, so quotas count wrongly.",
        "--fix corrects the catalog.",
    ),
    FindingKind.OVERDUE: Explanation(
        "removed checkpoint that is still on the disk",
        "removed checkpoints that are still on the disk",
        "They were deleted, replaced or expired, and the server ended before their bytes were freed.",
        "--fix deletes them, as the next start of the server does.",
    ),
    FindingKind.EMPTY_TRASH: Explanation(
        "removed checkpoint that cannot be restored",
        "removed checkpoints that cannot be restored",
        "They are in the trash, and their archives are gone.",
        "--fix drops them from the trash.",
    ),
    FindingKind.ORPHAN: Explanation(
        "archive without a row",
        "archives without a row",
        "They say which checkpoints they are, and the catalog does not know them: the database was lost or is an "
        "older one, or the server ended between writing an archive and noting it.",
        "--fix and --rebuild list them again, private and without an expiry.",
    ),
    FindingKind.RIVAL: Explanation(
        "archive whose name another one has",
        "archives whose names others have",
        "They say which checkpoints they are, and the name is taken, by the newer one if the catalog did not say: "
        "leftovers of a save that was to replace another.",
        "Kept. --fix --remove-orphans deletes them.",
    ),
    FindingKind.STRAY: Explanation(
        "archive that does not say what it is",
        "archives that do not say what they are",
        "No server has saved them like this: they were put here by hand, or are too damaged to tell.",
        "Kept. --fix --remove-orphans deletes them.",
    ),
    FindingKind.EPHEMERAL: Explanation(
        "sampler's weights that nobody uses",
        "samplers' weights that nobody uses",
        "They were written for samplers whose sessions are over or unknown, and were never listed.",
        "--fix deletes them.",
    ),
    FindingKind.RECOVERY: Explanation(
        "recovery archive that nobody needs",
        "recovery archives that nobody needs",
        "They were written to bring runs back that are over by now, and were never listed.",
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
        "A process was killed while it wrote. No checkpoint is in there.",
        "--fix deletes them.",
    ),
    FindingKind.EMPTY_DIRECTORY: Explanation(
        "empty directory",
        "empty directories",
        "Left by deletes; they do no harm.",
        "--fix removes them.",
    ),
}
