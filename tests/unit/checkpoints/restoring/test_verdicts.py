"""Verdicts on candidates that failed."""

from __future__ import annotations

import pytest

from chockstone.checkpoints.errors import (
    LocalResourceError,
    StoreDenied,
    StoreUnreachable,
    UnsupportedArchive,
)
from chockstone.checkpoints.restoring.verdicts import Verdict
from chockstone.checkpoints.restoring.walk_back import Ending, WalkBack


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (StoreDenied("403"), Verdict.DENIED),
        (StoreUnreachable("503"), Verdict.UNREACHABLE),
        (UnsupportedArchive("newer"), Verdict.INCOMPATIBLE),
        (LocalResourceError("no room"), Verdict.LOCAL),
        (ZeroDivisionError("nobody knows"), Verdict.UNREACHABLE),
    ],
)
def test_an_error_is_judged_and_stops(error: Exception, verdict: Verdict) -> None:
    walk = WalkBack([0, 1])
    for _ in walk:
        assert walk.failed(error) is verdict

    assert [look.reason for look in walk.judged] == [str(error)]
    assert walk.ending is Ending.BLOCKED
