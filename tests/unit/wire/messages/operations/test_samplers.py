from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import orjson
import pytest
from pydantic import ValidationError

from chockstone.wire.messages.operations.samplers import CheckSamplerRequest, CheckSamplerResponse, SamplerGapReport


def test_a_gap_that_was_not_measured_has_no_numbers_on_the_wire() -> None:
    at = datetime(2030, 1, 1, tzinfo=UTC)
    gap = SamplerGapReport(server="http://a", trouble="NaN", is_within_limit=False, measured_at=at)

    told = orjson.loads(CheckSamplerResponse(base_model="m", gaps=[gap], served_by="worker").encode())

    assert told["gaps"] == [
        {
            "server": "http://a",
            "tokens": 0,
            "trouble": "NaN",
            "is_within_limit": False,
            "measured_at": "2030-01-01T00:00:00Z",
        }
    ]
    assert "gap_limit" not in told and "tinker_path" not in told


@pytest.mark.parametrize("body", [{}, {"sampler": ""}, {"sampler": 5}, {"sampler": None}, {"sampler": "x" * 1001}])
def test_a_check_names_a_sampler(body: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        CheckSamplerRequest.model_validate(body)
