"""The messages of ``credentials``: as the SDK sends and reads them, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from tinker.types import (
    auth_token_response,
)

from chockstone.wire.messages import (
    credentials,
    schema,
)
from support.wire.sdk import (
    assert_read_by_the_sdk,
    response_ids,
)

RESPONSES: list[tuple[schema.Response, Any]] = [
    (credentials.AuthTokenResponse(jwt="eyJ"), auth_token_response.AuthTokenResponse),
]


@pytest.mark.parametrize(("ours", "theirs"), RESPONSES, ids=response_ids(RESPONSES))
def test_what_we_answer_is_read_by_the_sdk_in_full(ours: schema.Response, theirs: Any) -> None:
    assert_read_by_the_sdk(ours, theirs)
