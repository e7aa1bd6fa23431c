"""Errors of the checkpoint library as Flyte errors: their class tells Flyte whether to retry the task.

A store that cannot be reached and a full disk are worth a retry. Denied access, damage and a newer format are not.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from flyte.errors import NonRecoverableError, RuntimeSystemError

from chockstone.checkpoints.errors import ResumeBlocked, ResumeExhausted
from chockstone.checkpoints.restoring.verdicts import Verdict


class CheckpointUnreachable(ResumeBlocked, RuntimeSystemError):
    """A retry may help."""

    def __init__(self, message: str, *, verdict: str = "", report: object = None) -> None:
        RuntimeSystemError.__init__(self, type(self).__name__, message)
        self.verdict = verdict
        self.report = report


class CheckpointBlocked(ResumeBlocked, NonRecoverableError):
    """A person must change something first: the message says what."""

    def __init__(self, message: str, *, verdict: str = "", report: object = None) -> None:
        NonRecoverableError.__init__(self, message, type(self).__name__)
        self.verdict = verdict
        self.report = report


class CheckpointsExhausted(ResumeExhausted, NonRecoverableError):
    """Something was saved, and none of it can be used. A person must decide to start from zero."""

    def __init__(self, message: str, *, report: object = None) -> None:
        NonRecoverableError.__init__(self, message, type(self).__name__)
        self.report = report


@contextmanager
def as_flyte_errors() -> Iterator[None]:
    """Raise errors of the block as the classes above."""
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
