"""Errors that are both ours and Flyte's: the platform tells from the class whether another attempt can help.

What cannot be reached now may be there at the next attempt, and the disk may have room then. What is denied, damaged
or too new is the same then, and so many attempts later too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from flyte.errors import NonRecoverableError, RuntimeSystemError

from chockstone.checkpoints.errors import ResumeBlocked, ResumeExhausted
from chockstone.checkpoints.restoring.verdicts import Verdict


class CheckpointUnreachable(ResumeBlocked, RuntimeSystemError):
    """Another attempt may help."""

    def __init__(self, message: str, *, verdict: str = "", report: object = None) -> None:
        RuntimeSystemError.__init__(self, type(self).__name__, message)
        self.verdict = verdict
        self.report = report


class CheckpointBlocked(ResumeBlocked, NonRecoverableError):
    """Someone must do something first: the message says what."""

    def __init__(self, message: str, *, verdict: str = "", report: object = None) -> None:
        NonRecoverableError.__init__(self, message, type(self).__name__)
        self.verdict = verdict
        self.report = report


class CheckpointsExhausted(ResumeExhausted, NonRecoverableError):
    """Something was saved, and none of it can be used. Starting at zero is for a person to decide."""

    def __init__(self, message: str, *, report: object = None) -> None:
        NonRecoverableError.__init__(self, message, type(self).__name__)
        self.report = report


@contextmanager
def told_to_flyte() -> Iterator[None]:
    try:
        yield
    except (CheckpointUnreachable, CheckpointBlocked, CheckpointsExhausted):
        raise
    except ResumeBlocked as error:
        may_pass = error.verdict != "" and Verdict(error.verdict).may_pass
        kind = CheckpointUnreachable if may_pass else CheckpointBlocked
        raise kind(str(error), verdict=error.verdict, report=error.report) from error
    except ResumeExhausted as error:
        raise CheckpointsExhausted(str(error), report=error.report) from error
