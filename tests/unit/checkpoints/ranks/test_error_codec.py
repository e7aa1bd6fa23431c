from __future__ import annotations

import json

import pytest

from chockstone.checkpoints.errors import (
    CheckpointError,
    CheckpointMissing,
    DamagedArchive,
    DigestMismatch,
    RestoreMismatch,
    ResumeBlocked,
    SaveFailed,
    StoreFull,
    UnstorableValue,
)
from chockstone.checkpoints.ranks.error_codec import decode_error, encode_error


def passed_on(error: BaseException) -> CheckpointError:
    return decode_error(json.loads(json.dumps(encode_error(error))), default=SaveFailed)


@pytest.mark.parametrize(
    "error",
    [
        CheckpointMissing("there is none"),
        DigestMismatch("block 3", where=4096),
        RestoreMismatch("it does not fit", missing=("a", "b"), unexpected=("c",)),
        ResumeBlocked("cannot tell", verdict="denied"),
        StoreFull("no space"),
        UnstorableValue("model.lock", "cannot be stored"),
    ],
)
def test_an_error_of_ours_is_heard_as_it_was(error: CheckpointError) -> None:
    heard = passed_on(error)

    assert type(heard) is type(error)
    assert str(heard) == str(error)
    for field in ("missing", "unexpected", "verdict", "path", "touched"):
        assert getattr(heard, field, None) == getattr(error, field, None)


def test_a_kind_that_others_may_not_know_is_heard_as_the_nearest() -> None:
    class Torn(DamagedArchive):
        pass

    error = Torn("in two")
    error.touched = True

    heard = passed_on(error)

    assert type(heard) is DamagedArchive
    assert heard.touched
    assert heard.where is None


def test_an_error_of_others_keeps_its_name() -> None:
    heard = passed_on(KeyError("step"))

    assert type(heard) is SaveFailed
    assert str(heard) == "KeyError: 'step'"
