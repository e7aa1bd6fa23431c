"""Errors that Flyte 2 understands: a retry only where it may help."""

from __future__ import annotations

import pytest
from flyte.errors import NonRecoverableError, RuntimeSystemError

from chockstone.checkpoints.errors import ResumeBlocked, ResumeExhausted
from chockstone.checkpoints.restoring.verdicts import Verdict
from chockstone.integrations.flyte2.errors import as_flyte_errors


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ResumeBlocked("away", verdict=Verdict.UNREACHABLE), RuntimeSystemError),
        (ResumeBlocked("disk", verdict=Verdict.LOCAL), RuntimeSystemError),
        (ResumeBlocked("denied", verdict=Verdict.DENIED), NonRecoverableError),
        (ResumeBlocked("no verdict"), NonRecoverableError),
        (ResumeExhausted("damaged", report="a report"), NonRecoverableError),
    ],
    ids=str,
)
def test_the_class_tells_flyte_whether_to_retry(error: ResumeBlocked | ResumeExhausted, kind: type[Exception]) -> None:
    with pytest.raises(kind) as raised, as_flyte_errors():
        raise error

    assert isinstance(raised.value, type(error))
    assert str(error) in str(raised.value)
    assert getattr(raised.value, "report", None) == error.report
    assert raised.value.__cause__ is error


def test_an_error_that_flyte_understands_stays_as_it_is() -> None:
    with pytest.raises(ResumeBlocked) as first, as_flyte_errors():
        raise ResumeBlocked("denied", verdict=Verdict.DENIED)
    with pytest.raises(ResumeBlocked) as again, as_flyte_errors():
        raise first.value

    assert again.value is first.value
