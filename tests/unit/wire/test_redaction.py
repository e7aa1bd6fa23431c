from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chockstone.wire.messages.service import TelemetryRequest
from chockstone.wire.redaction import MAX_DEPTH, REDACTED, redact, redact_text, redact_url

KEY = "tml-9fA_x.y~z+/=-1"
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhIn0.c2lnbmF0dXJl-_"


def test_headers_in_an_event_lose_their_credentials() -> None:
    batch = {
        "events": [
            {
                "event": "GENERIC_EVENT",
                "event_data": {
                    "request_headers": {"x-api-key": "anything", "Authorization": "Bearer abc", "accept": "*/*"},
                    "exception": f"401 for {KEY}, {JWT}: {{'X-API-Key': 'plain-key', 'accept': 'a'}}",
                    "status_code": 401,
                },
            }
        ],
        "platform": "Linux",
    }

    kept = TelemetryRequest.model_validate(batch).redacted()

    data = kept["events"][0]["event_data"]
    assert data["request_headers"] == {"x-api-key": REDACTED, "Authorization": REDACTED, "accept": "*/*"}
    assert data["exception"] == f"401 for {REDACTED}, {REDACTED}: {{'X-API-Key': '{REDACTED}', 'accept': 'a'}}"
    assert (data["status_code"], kept["platform"]) == (401, "Linux")


@pytest.mark.parametrize(
    "text",
    [
        "x-api-key: hunter2",
        "X-API-KEY=hunter2",
        '{"x-api-key":"hunter2"}',
        '{\\"x-api-key\\": \\"hunter2\\"}',
        "('x-api-key', 'hunter2')",
        "Authorization: Bearer hunter2",
        "proxy-authorization: Basic hunter2",
        "api_key = hunter2",
        "CF-Access-Client-Secret: hunter2",
        "weights_access_token='hunter2'",
        "TINKER_API_KEY=hunter2",
        "jwt: hunter2",
    ],
)
def test_fields_written_in_text_are_found(text: str) -> None:
    assert "hunter2" not in redact_text(text)


@pytest.mark.parametrize(
    "text", ["", "plain", "tml:organization:local", "loss:sum 1.5", "step 3 of 4", "key points: none"]
)
def test_other_text_stays(text: str) -> None:
    assert redact_text(text) == text


def test_a_credential_may_be_a_name() -> None:
    assert redact({KEY: 1}) == {REDACTED: 1}


def test_what_comes_out_can_be_written() -> None:
    batch = TelemetryRequest.model_validate({"events": {"a\udfff": "a\ud800b\0"}, "n": float("nan")})

    assert batch.redacted()["events"] == {"a?": "a?b\0"}


def test_depth_has_an_end() -> None:
    deep: Any = KEY
    for _ in range(5_000):
        deep = [deep]

    shallow = redact(deep)

    for _ in range(MAX_DEPTH):
        shallow = shallow[0]
    assert shallow == REDACTED


@pytest.mark.parametrize("piece", ["a-", "cookie ", "x-api-key", "tml-", "eyJ.", "'\\", "secret-", "authorization:"])
def test_long_texts_take_no_longer_than_they_are(piece: str) -> None:
    started = time.perf_counter()

    redact_text(piece * (400_000 // len(piece)))

    assert time.perf_counter() - started < 3


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=9)
    | st.sampled_from([KEY, JWT]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9) | st.just(KEY), inner, max_size=4),
    max_leaves=12,
)


@settings(derandomize=True, deadline=None, max_examples=150)
@given(JSON)
def test_no_key_survives_anywhere(value: Any) -> None:
    text = json.dumps(redact(value))

    assert KEY[4:] not in text
    assert JWT[3:] not in text


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://ann:secret@db/x", "postgresql://ann:***@db/x"),
        ("postgresql://ann@db:5432/x", "postgresql://ann@db:5432/x"),
        ("postgresql://:secret@db/x", "postgresql://:***@db/x"),
        ("postgresql://ann:sec/ret@db/x", "postgresql://ann:***@db/x"),
        ("postgresql://ann:se@cret@db/x", "postgresql://ann:***@db/x"),
        ("postgresql://ann:sec?ret#@db/x?a=b", "postgresql://ann:***@db/x?a=b"),
        ("postgresql:///x?user=ann&password=secret&host=/run", "postgresql:///x?user=ann&password=***&host=/run"),
        ("postgresql://db/x?sslpassword=secret", "postgresql://db/x?sslpassword=***"),
        ("sqlite:////data/catalog.sqlite3", "sqlite:////data/catalog.sqlite3"),
    ],
)
def test_urls_are_shown_without_their_password(url: str, shown: str) -> None:
    assert redact_url(url) == shown
