"""Errors that Flyte understands: recoverable only where another attempt may help, and the same one each time."""

from __future__ import annotations

import pytest
from flytekit.exceptions.user import FlyteDataNotFoundException, FlyteRecoverableException

from chockstone.checkpoints.errors import LocalResourceError, ResumeBlocked, ResumeExhausted, StoreUnreachable
from chockstone.checkpoints.restoring.verdicts import Verdict
from chockstone.integrations.flyte.errors import FreshStart, Translator


def translated(error: Exception) -> BaseException:
    with pytest.raises(type(error)) as raised, Translator().translated():
        raise error
    return raised.value


@pytest.mark.parametrize(
    ("error", "is_recoverable"),
    [
        (ResumeBlocked("away", verdict=Verdict.UNREACHABLE), True),
        (ResumeBlocked("disk", verdict=Verdict.LOCAL), True),
        (ResumeBlocked("denied", verdict=Verdict.DENIED), False),
        (ResumeBlocked("newer", verdict=Verdict.INCOMPATIBLE), False),
        (ResumeExhausted("damaged"), False),
        (StoreUnreachable("away"), True),
        (LocalResourceError("full"), True),
    ],
    ids=str,
)
def test_only_what_may_pass_by_itself_is_recoverable(error: Exception, is_recoverable: bool) -> None:
    told = translated(error)

    assert isinstance(told, FlyteRecoverableException) is is_recoverable
    assert str(told) == str(error), "without flytekit's code before it"
    assert getattr(told, "verdict", None) == getattr(error, "verdict", None)


def test_the_same_error_is_the_same_one_each_time() -> None:
    translator, error = Translator(), ResumeBlocked("denied", verdict=Verdict.DENIED)
    told = []
    for _ in range(2):
        with pytest.raises(ResumeBlocked) as raised, translator.translated():
            raise error
        told.append(raised.value)

    assert told[0] is told[1]
    assert told[0].__cause__ is error


def test_a_fresh_start_is_what_flytekit_raises_for_a_missing_checkpoint() -> None:
    error = FreshStart("s3://b/a0")

    assert isinstance(error, FlyteDataNotFoundException)
    assert "nothing was ever committed at 's3://b/a0'" in str(error)
