"""The search for a checkpoint: the one of a name, or the newest one of a kind that can be read.

Damaged checkpoints are read twice, then skipped and named in the result. See ``walk_back`` for the rules.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from chockstone.checkpoints.errors import (
    CheckpointError,
    CheckpointMissing,
    DamagedArchive,
    RestoreFailed,
    UnsupportedArchive,
)
from chockstone.checkpoints.reading.archive import Archive
from chockstone.checkpoints.reading.listing import is_set_aside, list_checkpoints
from chockstone.checkpoints.reading.reader import verify_archive
from chockstone.checkpoints.restoring.receipt import Restored, RestoreReceipt, SkippedCandidate
from chockstone.checkpoints.restoring.verdicts import Verdict
from chockstone.checkpoints.restoring.walk_back import Ending, WalkBack
from chockstone.checkpoints.stores.store import Store

log = logging.getLogger(__name__)
_HALF_RESTORED: Final = "the target is half restored; do not use it."


@dataclass(frozen=True, slots=True)
class _Candidate:
    name: str
    step: int | None
    is_asked_for: bool = False  # by its name, so that no other one will do


class CheckpointSearch:
    """Tries the checkpoints below one prefix of a store, from the newest back. Use it for one restore or load."""

    def __init__(
        self,
        store: Store,
        prefix: str,
        *,
        kind: str,
        name: str | None,
        on_skipped: Callable[[str], None] = lambda _: None,
    ) -> None:
        """``name``: the full name of the only checkpoint to try; None: all of that kind.

        ``on_skipped`` is called with the full name of each checkpoint that is skipped as damaged.
        """
        self._store = store
        self._prefix = prefix
        self._kind = kind
        self._name = name
        self._on_skipped = on_skipped
        self._other_kinds: set[str] = set()  # of the listed checkpoints

    def restore(self, attempt: Callable[[str], RestoreReceipt]) -> RestoreReceipt | None:
        """The receipt of the newest checkpoint that ``attempt`` restores; it is called with the full name.

        None: there is no checkpoint, a first start. Raises CheckpointMissing if the checkpoint of a given name is
        missing, or if all checkpoints are of other kinds.
        """
        walk = self._walk()
        touched: CheckpointError | None = None  # raised by a checkpoint after it had filled a part of the target
        for candidate in walk:
            try:
                receipt = attempt(candidate.name)
            except CheckpointError as error:
                if self._continues(walk, candidate, error):
                    touched = error if getattr(error, "touched", False) else touched
                elif touched is None or isinstance(error, DamagedArchive):
                    raise
                else:
                    failed = f"{_HALF_RESTORED} {touched} Then {candidate.name!r} failed: {error}"
                    raise RestoreFailed(failed) from error
            else:
                walk.accept(step=receipt.step)
                return replace(receipt, skipped=tuple(_skipped(walk)), steps_lost=walk.steps_lost)
        if touched is not None:
            raise RestoreFailed(f"{_HALF_RESTORED} {self._none_left(walk)}") from touched
        if walk.ending is Ending.FRESH and not self._other_kinds:
            log.info("first start: no checkpoint to restore place=%s kind=%s", self._place, self._kind)
            return None
        raise self._none_left(walk)

    def verify(self) -> RestoreReceipt | None:
        """As ``restore``, of the newest checkpoint of which every block is sound. Nothing is restored."""
        started = time.perf_counter()

        def attempt(name: str) -> RestoreReceipt:
            with Archive(self._store.open(name)) as archive:
                verify_archive(archive)
                seconds = time.perf_counter() - started
                return RestoreReceipt.of(archive, Restored((), (), ()), name=name, url=self._store.url, seconds=seconds)

        return self.restore(attempt)

    def load(self, attempt: Callable[[str], dict[str, Any]]) -> dict[str, Any]:  # Any: a state
        """The state of the newest checkpoint that ``attempt`` loads; it is called with the full name."""
        walk = self._walk()
        for candidate in walk:
            try:
                return attempt(candidate.name)
            except CheckpointError as error:
                if not self._continues(walk, candidate, error):
                    raise
        raise self._none_left(walk)

    def _walk(self) -> WalkBack[_Candidate]:
        """Checkpoints whose head cannot be read have no age to order them by, so they are rejected first."""
        if self._name:
            return WalkBack([_Candidate(self._name, None, is_asked_for=True)])
        listed = list_checkpoints(self._store, self._prefix)
        if not listed:  # a directory whose only archive is replaced while it is listed can look empty
            listed = list_checkpoints(self._store, self._prefix)
        listed = [c for c in listed if not is_set_aside(c.name)] or listed
        unreadable = [c for c in listed if c.manifest is None]
        unreadable.sort(key=lambda c: c.is_newer, reverse=True)
        walk = WalkBack(_Candidate(c.name, None) for c in unreadable)
        for checkpoint, _ in zip(unreadable, walk, strict=False):
            verdict = Verdict.INCOMPATIBLE if checkpoint.is_newer else Verdict.CORRUPT
            walk.reject(verdict, checkpoint.damage or "", is_sure=True)
            self._on_skipped(checkpoint.name)
        if walk.blocked is not None:
            raise UnsupportedArchive(f"checkpoint {walk.blocked.candidate.name!r}: {walk.blocked.reason}")
        self._other_kinds = {c.manifest.kind for c in listed if c.manifest} - {self._kind}
        of_kind = [c for c in reversed(listed) if c.manifest and c.manifest.kind == self._kind]
        walk.add(_Candidate(c.name, c.manifest.step) for c in of_kind if c.manifest)
        return walk

    def _continues(self, walk: WalkBack[_Candidate], candidate: _Candidate, error: CheckpointError) -> bool:
        """Whether another checkpoint, or the same one again, may be tried after this error."""
        walk.failed(error, step=candidate.step)
        if walk.will_retry:
            return True
        if candidate.is_asked_for or walk.is_over:
            return False
        log.warning("checkpoint skipped name=%s damage=%s", candidate.name, error)
        self._on_skipped(candidate.name)
        return True

    def _none_left(self, walk: WalkBack[_Candidate]) -> CheckpointError:
        if walk.ending is Ending.FRESH:
            missing = f"there is no checkpoint of kind {self._kind!r} in {self._place}"
            if self._other_kinds:
                others = ", ".join(map(repr, sorted(self._other_kinds)))
                missing += f", only of kind {others}. Give one of these as kind=, or another directory or prefix"
            return CheckpointMissing(missing)
        listed = "".join(f"\n  {skip.name}: {skip.reason}" for skip in _skipped(walk))
        return DamagedArchive(f"none of the checkpoints in {self._place} can be used:{listed}")

    @property
    def _place(self) -> str:
        return f"{self._store.url}/{self._prefix}" if self._prefix else self._store.url


def _skipped(walk: WalkBack[_Candidate]) -> Iterator[SkippedCandidate]:
    return (SkippedCandidate(look.candidate.name, look.reason) for look in walk.skipped)
