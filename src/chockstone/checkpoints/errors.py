"""What can go wrong with a checkpoint, as one tree.

CheckpointError
├── UnstorableValue       the state holds something the format does not carry
├── DamagedArchive        the bytes are not what was written
│   ├── TruncatedArchive      shorter or longer than its manifest plans
│   ├── UncommittedArchive    no valid COMMIT member
│   ├── SealMismatch          sound, but not the archive that was expected in its place
│   └── DigestMismatch        a block differs from its digest
├── ForeignArchive        not an archive of ours at all
├── UnsupportedArchive    a newer format than this version reads
├── RestoreMismatch       archive and target do not fit; nothing was touched
├── RestoreFailed         an object refused its part of the state; the target is half restored
├── ExportRefused         the target of an export exists, or cannot be made
├── SaveFailed            an earlier background save failed, and no caller has seen its error
├── SaveAbandoned         the save was cancelled before its commit; nothing is visible
├── RanksLost             processes that save or restore together lost one of them
├── AdmissionRefused      quota or free space; decided before the first byte
├── ResumeError           a chain of attempts cannot resume
│   ├── ResumeBlocked         a candidate cannot be judged now; nothing older may be taken for it
│   ├── ResumeExhausted       something was committed, and none of it can be used
│   ├── Superseded            a later attempt or incarnation has taken over; stop
│   └── LocalResourceError          our own disk or descriptors, not the candidate's
└── StoreError            the place where archives live
    ├── InvalidName
    ├── CheckpointMissing
    ├── CheckpointExists
    ├── StoreDenied           401, 403, EACCES, EROFS
    ├── StoreFull             ENOSPC, EDQUOT
    └── StoreUnreachable      5xx, timeouts, I/O errors, no file descriptors: not known to be absent
"""

from __future__ import annotations


class CheckpointError(Exception):
    """Root of all errors that this library raises on purpose."""


class UnstorableValue(CheckpointError, TypeError):
    """A value in the state cannot be stored. ``path`` is where it stands in the tree."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"{path}: {why}")
        self.path = path


class DamagedArchive(CheckpointError):
    """The archive is not what was written. ``where`` is a byte offset when one is known."""

    def __init__(self, what: str, *, where: int | None = None) -> None:
        super().__init__(what if where is None else f"{what} (at byte {where})")
        self.where = where
        self.touched = False  # whether a part of the target was filled before the damage was found


class TruncatedArchive(DamagedArchive):
    pass


class UncommittedArchive(DamagedArchive):
    pass


class SealMismatch(DamagedArchive):
    """``expected`` is the seal that the caller knew, ``found`` that of the archive."""

    def __init__(self, *, expected: str, found: str) -> None:
        super().__init__(
            f"another archive is in its place: it is sealed {found[:16]}…, and {expected[:16]}… was expected"
        )
        self.expected = expected
        self.found = found


class DigestMismatch(DamagedArchive):
    pass


class ForeignArchive(CheckpointError):
    pass


class UnsupportedArchive(CheckpointError):
    pass


class RestoreMismatch(CheckpointError):
    """Archive and target differ. Raised before anything in the target was changed."""

    def __init__(self, message: str, *, missing: tuple[str, ...] = (), unexpected: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.missing = missing
        self.unexpected = unexpected


class RestoreFailed(CheckpointError):
    pass


class ExportRefused(CheckpointError):
    pass


class SaveFailed(CheckpointError):
    pass


class SaveAbandoned(CheckpointError):
    pass


class RanksLost(CheckpointError):
    pass


class AdmissionRefused(CheckpointError):
    """``needed_bytes`` is the size of the archive that was refused."""

    def __init__(self, message: str, *, needed_bytes: int) -> None:
        super().__init__(message)
        self.needed_bytes = needed_bytes


class ResumeError(CheckpointError):
    pass


class ResumeBlocked(ResumeError):
    """``verdict`` is why; ``report`` is the audit so far, for those who ask."""

    def __init__(self, message: str, *, verdict: str = "", report: object = None) -> None:
        super().__init__(message)
        self.verdict = verdict
        self.report = report


class ResumeExhausted(ResumeError):
    def __init__(self, message: str, *, report: object = None) -> None:
        super().__init__(message)
        self.report = report


class Superseded(ResumeError):
    pass


class LocalResourceError(ResumeError):
    pass


class StoreError(CheckpointError):
    pass


class InvalidName(StoreError, ValueError):
    pass


class CheckpointMissing(StoreError):
    pass


class CheckpointExists(StoreError):
    pass


class StoreDenied(StoreError):
    pass


class StoreFull(StoreError):
    pass


class StoreUnreachable(StoreError):
    pass
