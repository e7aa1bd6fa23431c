"""What goes wrong with a checkpoint, as Flyte understands it: whether another attempt is worth its while.

Each is what the checkpoint library raises, too. Only what may pass by itself is recoverable; Flyte ends the
task at the others, because the next attempt would find the same.

FreshStart            nothing was ever committed (flytekit's FlyteDataNotFoundException)
ResumeBlockedForNow   ResumeBlocked, recoverable: the store could not be reached, or our own disk is full
ResumeBlockedForGood  ResumeBlocked: denied, or of a newer version
NothingUsable         ResumeExhausted: something was committed, and none of it can be used
StoreAway             StoreUnreachable while saving, recoverable
DiskAway              LocalResourceError before or after the decision, recoverable
HostChanged           this flytekit is not the one that is known here
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from flytekit.exceptions.user import FlyteDataNotFoundException, FlyteRecoverableException, FlyteUserException

from chockstone.checkpoints.errors import (
    CheckpointError,
    LocalResourceError,
    ResumeBlocked,
    ResumeExhausted,
    StoreUnreachable,
)
from chockstone.checkpoints.restoring.verdicts import Verdict
from chockstone.checkpoints.resume.walk.report import ResumeReport


class _PlainlySaid:
    """The message as it is; flytekit would put its code before it."""

    args: tuple[object, ...]

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class FreshStart(_PlainlySaid, FlyteDataNotFoundException):  # type: ignore[misc]  # flytekit has no types
    """``report`` lists what was looked at."""

    def __init__(self, path: str, report: ResumeReport | None = None) -> None:
        super().__init__(path)
        looked = "; ".join(f"{each.uri}: {each.verdict}" for each in report.looked) if report else ""
        self.args = (f"there is no checkpoint to restore: nothing was ever committed at {path!r} or before ({looked})",)
        self.report = report


class ResumeBlockedForNow(_PlainlySaid, FlyteRecoverableException, ResumeBlocked):  # type: ignore[misc]
    _ERROR_CODE = "USER:ResumeUnreachable"


class ResumeBlockedForGood(_PlainlySaid, FlyteUserException, ResumeBlocked):  # type: ignore[misc]
    _ERROR_CODE = "USER:ResumeBlocked"


class NothingUsable(_PlainlySaid, FlyteUserException, ResumeExhausted):  # type: ignore[misc]
    _ERROR_CODE = "USER:ResumeExhausted"


class StoreAway(_PlainlySaid, FlyteRecoverableException, StoreUnreachable):  # type: ignore[misc]
    _ERROR_CODE = "USER:StoreUnreachable"


class DiskAway(_PlainlySaid, FlyteRecoverableException, LocalResourceError):  # type: ignore[misc]
    _ERROR_CODE = "USER:LocalDisk"


class FlytekitChanged(CheckpointError):
    pass


class Translator:
    """Turns errors of the library into those above; the same one into the same, however often it comes."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Exception, Exception]] = {}

    @contextmanager
    def translated(self) -> Iterator[None]:
        try:
            yield
        except (ResumeBlocked, ResumeExhausted, StoreUnreachable, LocalResourceError) as error:
            if isinstance(error, FlyteUserException):
                raise
            if id(error) not in self._known:
                self._known[id(error)] = (error, _translate(error))  # holds it, so that the id stays its own
            raise self._known[id(error)][1] from error


def _translate(error: ResumeBlocked | ResumeExhausted | StoreUnreachable | LocalResourceError) -> Exception:
    if isinstance(error, StoreUnreachable):
        return StoreAway(str(error))
    if isinstance(error, LocalResourceError):
        return DiskAway(str(error))
    if isinstance(error, ResumeExhausted):
        exhausted = NothingUsable(str(error))
        exhausted.report = error.report
        return exhausted
    may_pass = error.verdict != "" and Verdict(error.verdict).may_pass
    kind = ResumeBlockedForNow if may_pass else ResumeBlockedForGood
    blocked = kind(str(error))
    blocked.verdict, blocked.report = error.verdict, error.report
    return blocked
