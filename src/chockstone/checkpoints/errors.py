"""All errors of the library, as one tree.

```text
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
├── ImportRefused         a checkpoint of another program is damaged, or holds what must not be read
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
```
"""

from __future__ import annotations

from typing import Any


class CheckpointError(Exception):
    """Root of all errors that this library raises on purpose. Each can be sent to another process."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args, self.__dict__.copy())


def _rebuild(kind: type[CheckpointError], args: tuple[Any, ...], attributes: dict[str, Any]) -> CheckpointError:
    """An error as it was: constructors differ, and some make their text themselves."""
    error = kind.__new__(kind, *args)
    error.__dict__.update(attributes)
    return error


class UnstorableValue(CheckpointError, TypeError):
    """A value in the state cannot be stored. ``path`` is where it stands in the tree, ``why`` the reason."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"{path}: {why}")
        self.path = path
        self.why = why


class DamagedArchive(CheckpointError):
    """The archive is not what was written. ``where`` is a byte offset when one is known."""

    def __init__(self, what: str, *, where: int | None = None) -> None:
        super().__init__(what if where is None else f"{what} (at byte {where})")
        self.where = where
        self.touched = False  # whether a part of the target was filled before the damage was found


class TruncatedArchive(DamagedArchive):
    """The archive is shorter or longer than its manifest says."""


class UncommittedArchive(DamagedArchive):
    """The archive has no valid COMMIT member: its writer was interrupted."""


class SealMismatch(DamagedArchive):
    """``expected`` is the seal that the caller knew, ``found`` that of the archive."""

    def __init__(self, *, expected: str, found: str) -> None:
        super().__init__(
            f"another archive is in its place: it is sealed {found[:16]}…, and {expected[:16]}… was expected"
        )
        self.expected = expected
        self.found = found


class DigestMismatch(DamagedArchive):
    """A block of the archive differs from its digest."""


class ForeignArchive(CheckpointError):
    """The file is not an archive of this library."""


class UnsupportedArchive(CheckpointError):
    """The archive has a newer format than this version reads. Install a newer version."""


class RestoreMismatch(CheckpointError):
    """Archive and target differ. Raised before anything in the target was changed."""

    def __init__(self, message: str, *, missing: tuple[str, ...] = (), unexpected: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.missing = missing
        self.unexpected = unexpected


class RestoreFailed(CheckpointError):
    """An object refused its part of the state. The target is half restored: restore again, or discard it."""


class ExportRefused(CheckpointError):
    """The target of an export exists, or cannot be created."""


class ImportRefused(CheckpointError):
    """A checkpoint of another program is damaged, or holds what must not be read. Nothing was stored."""


class SaveFailed(CheckpointError):
    """A background save failed, and no caller has seen its error, which is the cause of this one."""


class SaveAbandoned(CheckpointError):
    """The save was cancelled before its commit. Nothing of it is visible."""


class RanksLost(CheckpointError):
    """A process that saves or restores together with this one is lost."""


class AdmissionRefused(CheckpointError):
    """A save exceeds a quota or the free space. ``needed_bytes`` is the size of the archive that was refused."""

    def __init__(self, message: str, *, needed_bytes: int) -> None:
        super().__init__(message)
        self.needed_bytes = needed_bytes


class ResumeError(CheckpointError):
    """A chain of attempts cannot resume."""


class ResumeBlocked(ResumeError):
    """A candidate cannot be judged now, and no older one may replace it. ``verdict`` says why.

    ``report`` is the audit so far, if there is one.
    """

    def __init__(self, message: str, *, verdict: str = "", report: object = None) -> None:
        super().__init__(message)
        self.verdict = verdict
        self.report = report


class ResumeExhausted(ResumeError):
    """Attempts saved something, and none of it can be used. ``report`` lists the candidates."""

    def __init__(self, message: str, *, report: object = None) -> None:
        super().__init__(message)
        self.report = report


class Superseded(ResumeError):
    """A later attempt, or a restart of this one, has taken over. Stop this process."""


class LocalResourceError(ResumeError):
    """This machine lacks disk space or file descriptors. The checkpoint is not at fault."""


class StoreError(CheckpointError):
    """The store refused or failed."""


class InvalidName(StoreError, ValueError):
    """A name or URL that this store cannot have."""


class CheckpointMissing(StoreError):
    """There is no such checkpoint."""


class CheckpointExists(StoreError):
    """A checkpoint of this name exists. Choose another name, or pass ``overwrite=True``."""


class StoreDenied(StoreError):
    """The store denied access: HTTP 401 or 403, EACCES, EROFS."""


class StoreFull(StoreError):
    """The store has no room: ENOSPC, EDQUOT."""


class StoreUnreachable(StoreError):
    """The store did not answer: HTTP 5xx, a timeout, an I/O error. The checkpoint may exist."""
