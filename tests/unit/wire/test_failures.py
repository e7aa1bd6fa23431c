from __future__ import annotations

import orjson
import pytest

from chockstone.wire.failures import BadRequest, Failure, ServerFailure


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (BadRequest("send less"), {"error": "send less", "category": "user"}),
        (ServerFailure("the disk is full", code="no_room"), {"error": "the disk is full", "category": "server"}),
        (ValueError("not ours"), {"error": "ValueError: not ours", "category": "server"}),
    ],
)
def test_a_failure_says_whose_fault_it_was(error: Exception, told: dict[str, str]) -> None:
    assert orjson.loads(Failure.of(error).encode()) == told


def test_a_code_is_an_attribute() -> None:
    assert ServerFailure("the disk is full", code="no_room").code == "no_room"
    assert BadRequest("send less").code is None
