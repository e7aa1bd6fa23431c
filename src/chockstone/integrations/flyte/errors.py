"""Errors of the checkpoint library as Flyte errors, which tell Flyte whether to retry the task.

Each class is also the library's error. An error is recoverable if it may end without a change; Flyte fails the task at
the others, because the next attempt would fail the same way.

FreshStart            nothing was ever committed (flytekit's FlyteDataNotFoundException)
ResumeBlockedForNow   ResumeBlocked, recoverable: the store could not be reached, or our own disk is full
ResumeBlockedForGood  ResumeBlocked: denied, or written by a newer version
NothingUsable         ResumeExhausted: something was committed, and none of it can be used
StoreAway             StoreUnreachable while saving, recoverable
DiskAway              LocalResourceError before or after the decision, recoverable
FlytekitChanged       this flytekit is not one that the integration supports
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


class _PlainMessage:
    """Keeps the message unchanged; flytekit would put its error code before it."""

    args: tuple[object, ...]

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class FreshStart(_PlainMessage, FlyteDataNotFoundException):  # type: ignore[misc]  # flytekit has no types
    """The platform named a previous attempt, and no attempt ever saved anything.

    ``report`` lists the candidates and their verdicts.
    """

    def __init__(self, path: str, report: ResumeReport | None = None) -> None:
        super().__init__(path)
        looked = "; ".join(f"{each.uri}: {each.verdict}" for each in report.looked) if report else ""
        self.args = (f"there is no checkpoint to restore: nothing was ever committed at {path!r} or before ({looked})",)
        self.report = report


class ResumeBlockedForNow(_PlainMessage, FlyteRecoverableException, ResumeBlocked):  # type: ignore[misc]
    _ERROR_CODE = "USER:ResumeUnreachable"


class ResumeBlockedForGood(_PlainMessage, FlyteUserException, ResumeBlocked):  # type: ignore[misc]
    _ERROR_CODE = "USER:ResumeBlocked"


class NothingUsable(_PlainMessage, FlyteUserException, ResumeExhausted):  # type: ignore[misc]
    _ERROR_CODE = "USER:ResumeExhausted"


class StoreAway(_PlainMessage, FlyteRecoverableException, StoreUnreachable):  # type: ignore[misc]
    _ERROR_CODE = "USER:StoreUnreachable"


class DiskAway(_PlainMessage, FlyteRecoverableException, LocalResourceError):  # type: ignore[misc]
    _ERROR_CODE = "USER:LocalDisk"


class FlytekitChanged(CheckpointError):
    """This version of flytekit makes its checkpoints in a way that Chockstone does not support."""


class Translator:
    """Translates errors of the library. The same error gives the same translation each time."""

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
                self._known[id(error)] = (error, _translate(error))  # keeps the error, so that its id is not reused
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
