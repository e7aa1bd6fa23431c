"""Explains the directory of a Checkpointer, which is no chain of attempts. Reads the heads of its archives only."""

from __future__ import annotations

import time
from typing import Final

from chockstone.checkpoints.errors import InvalidName
from chockstone.checkpoints.reading.listing import StoredCheckpoint, list_checkpoints
from chockstone.checkpoints.restoring.verdicts import Verdict
from chockstone.checkpoints.resume.attempts.places import FOLDER
from chockstone.checkpoints.resume.walk.report import CandidateReport, Outcome, ResumeReport
from chockstone.checkpoints.stores.file_store import FileStore
from chockstone.checkpoints.stores.store import open_store

ORIGIN: Final = "checkpointer"
_WRITTEN_BY: Final = (
    "a Checkpointer wrote these archives: Checkpointer.restore() restores them, and Resume does not. To continue with "
    "Resume, give Resume another root, and at its first start call Checkpointer(…).restore(state)"
)
_HEADS_ONLY: Final = (
    "only the heads of these archives were read: Checkpointer.restore() verifies the content and skips damaged ones; "
    "`chockstone checkpoints verify` reads everything"
)
_KIND: Final = "weights"  # that Checkpointer.restore looks for by default


def explain_checkpointer(uri: str) -> ResumeReport | None:
    """Report what ``Checkpointer(uri).restore()`` would restore; None if there is no archive of a Checkpointer.

    Raises StoreError if the place cannot be listed.
    """
    started = time.perf_counter()
    try:
        store = open_store(uri)
    except InvalidName:
        return None
    if isinstance(store, FileStore) and not store.root.is_dir():
        return None  # a file, such as Flyte 2's own checkpoint, or nothing
    found = [each for each in list_checkpoints(store) if f"{FOLDER}/" not in each.name and not each.is_for_recovery]
    if not found:
        return None
    of_kind = [each for each in reversed(found) if each.manifest is not None and each.manifest.kind == _KIND]
    unreadable = sorted((each for each in found if each.manifest is None), key=lambda each: each.is_newer, reverse=True)
    looked = [_judged(uri, each) for each in (*unreadable, *of_kind)]
    is_blocked = any(each.verdict.stops for each in looked)
    choice = None if is_blocked else next((each for each in looked if each.verdict is Verdict.VERIFIED), None)
    outcome: Outcome = "blocked" if is_blocked else "exhausted" if choice is None else "resolved"
    return ResumeReport(
        place=uri,
        attempt=None,
        identity={},
        outcome=outcome,
        looked=tuple(looked),
        choice=choice,
        steps_lost=None if choice is None else 0 if not unreadable else None,
        size_bytes=0,
        milliseconds=1000 * (time.perf_counter() - started),
        notes=tuple(_notes(found)),
    )


def _judged(uri: str, checkpoint: StoredCheckpoint) -> CandidateReport:
    verdict = Verdict.INCOMPATIBLE if checkpoint.is_newer else Verdict.CORRUPT
    manifest = checkpoint.manifest
    return CandidateReport(
        uri=uri,
        origin=ORIGIN,
        verdict=verdict if manifest is None else Verdict.VERIFIED,
        reason=checkpoint.damage or "",
        generation=checkpoint.name,
        step=None if manifest is None else manifest.step,
    )


def _notes(found: list[StoredCheckpoint]) -> list[str]:
    notes = [_WRITTEN_BY, _HEADS_ONLY]
    prefixes = sorted({each.name.rpartition("/")[0] for each in found})
    if len(prefixes) > 1:
        listed = ", ".join(repr(prefix) for prefix in prefixes[:10])
        notes.append(f"the archives have {len(prefixes)} prefixes: {listed}; explain one prefix by its own path")
    return notes
