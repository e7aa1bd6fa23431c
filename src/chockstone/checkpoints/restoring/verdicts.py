"""Verdicts: the result of trying one candidate, and whether the walk may continue past it.

Every unknown error is UNREACHABLE. A candidate that could not be judged must never count as absent, or a run
with days of work would start from zero.
"""

from __future__ import annotations

import errno
from enum import StrEnum
from typing import Final

from chockstone.checkpoints.errors import (
    CheckpointMissing,
    DamagedArchive,
    ForeignArchive,
    LocalResourceError,
    ResumeBlocked,
    StoreDenied,
    StoreFull,
    UnsupportedArchive,
)


class Verdict(StrEnum):
    """What a resume found at one candidate, and so whether an older candidate may replace it."""

    VERIFIED = "verified"  # committed, ours, and what was read of it is right
    UNVERIFIED = "unverified"  # files of Flyte's own checkpointer: no claim, no commit, no digests
    ABSENT = "absent"  # the store says so, and listing is permitted
    EMPTY = "empty"  # the place is there, and nothing is in it
    PARTIAL = "partial"  # begun, and never committed
    CORRUPT = "corrupt"  # committed, and damaged, also at a second reading
    FOREIGN = "foreign"  # of another chain
    INCOMPATIBLE = "incompatible"  # of a newer format than this version reads
    SUPERSEDED = "void"  # committed after its writer had been superseded
    POISONED = "poisoned"  # the loader failed on it again and again
    DENIED = "denied"
    UNREACHABLE = "unreachable"
    LOCAL = "local"  # our own disk or memory; it says nothing about the candidate
    SETTLED = "settled"  # not asked: an earlier attempt found it fenced, and with nothing to restore
    UNTRIED = "untried"  # something was committed there, and the walk ended before it

    @property
    def stops(self) -> bool:
        """Whether no older candidate may replace it, unless the user allows that."""
        return self in _STOPS

    @property
    def may_pass(self) -> bool:
        """Whether a retry may succeed without any change: the store may answer, or the disk may have room."""
        return self in (Verdict.UNREACHABLE, Verdict.LOCAL)

    @property
    def was_committed(self) -> bool:
        """Whether it shows that the chain had saved something, so that no attempt may start from zero."""
        return self in _COMMITTED


_STOPS: Final = {Verdict.INCOMPATIBLE, Verdict.DENIED, Verdict.UNREACHABLE, Verdict.LOCAL}
_COMMITTED: Final = {Verdict.VERIFIED, Verdict.UNVERIFIED, Verdict.CORRUPT, Verdict.SUPERSEDED, Verdict.POISONED}
_OUR_DESCRIPTORS: Final = {errno.EMFILE, errno.ENFILE}  # whichever file it was that could not be opened
_OUR_OWN: Final = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, *_OUR_DESCRIPTORS}


def judge(error: BaseException) -> Verdict:
    """The verdict on a candidate whose reading or restore raised ``error``."""
    if isinstance(error, ResumeBlocked) and error.verdict:
        return Verdict(error.verdict)
    if isinstance(error, LocalResourceError | StoreFull | MemoryError):
        return Verdict.LOCAL
    if isinstance(error, UnsupportedArchive):
        return Verdict.INCOMPATIBLE
    if isinstance(error, CheckpointMissing | DamagedArchive | ForeignArchive):
        return Verdict.CORRUPT  # it was listed, so it was committed
    if isinstance(error, StoreDenied):
        return Verdict.DENIED
    if isinstance(error.__cause__, OSError) and error.__cause__.errno in _OUR_DESCRIPTORS:
        return Verdict.LOCAL
    if isinstance(error, OSError) and error.errno in _OUR_OWN:
        return Verdict.LOCAL
    return Verdict.UNREACHABLE
