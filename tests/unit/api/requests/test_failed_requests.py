from __future__ import annotations

import logging

import httpx
import pytest
from starlette.types import Message

from chockstone.api.context import Context
from chockstone.api.errors import CatalogAway
from support.api.users import User
from support.served import Served


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.levelno >= logging.WARNING]


async def test_a_refused_request_is_one_warning_with_route_status_owner_and_reason(
    ann: User, caplog: pytest.LogCaptureFixture
) -> None:
    answer = await ann.http.get("training_runs/nowhere")

    [said] = warnings_of(caplog)
    assert said == (
        "request failed route='GET /training_runs/{run_id}' status=404 owner=ann client=127.0.0.1 request=- "
        f"reason={answer.json()['detail']!r}"
    )


async def test_an_accepted_request_that_fails_later_is_one_warning_with_its_id(
    ann: User, caplog: pytest.LogCaptureFixture
) -> None:
    run_id = await ann.run()
    await ann.save(run_id, "a")

    told = await ann.outcome("save_weights", {"model_id": run_id, "seq_id": 90, "path": "a"})

    [said] = warnings_of(caplog)
    assert said.startswith("request failed route='save' category=user owner=ann client=- request=")
    assert f":train:1:90 reason={told['error']!r}" in said


async def test_a_request_without_a_key_is_told_and_a_wrong_key_is_left_to_the_report_of_keys(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    without = await served.http.get("training_runs", headers={"X-API-Key": ""})
    wrong = await served.http.get("training_runs", headers={"X-API-Key": "tml-wrong"})

    assert (without.status_code, wrong.status_code) == (401, 401)
    first, second = warnings_of(caplog)
    assert first.startswith("request failed route='GET (none)' status=401 owner=- client=127.0.0.1")
    assert second.startswith("key refused client=127.0.0.1")


async def test_polls_and_probes_that_find_nothing_yet_are_no_failures(
    served: Served, ann: User, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from chockstone.api.tinker import futures

    monkeypatch.setattr(futures, "_HOLD_SECONDS", 0.01)
    promise = served.engine.futures.promise("ann")

    poll = await ann.http.post("retrieve_future", json={"request_id": promise.request_id})

    assert poll.status_code == 408
    assert warnings_of(caplog) == []


async def test_a_signed_url_is_not_logged(ann: User, caplog: pytest.LogCaptureFixture) -> None:
    answer = await ann.http.get("downloads/secret-token/a.tar")

    assert answer.status_code >= 400
    [said] = warnings_of(caplog)
    assert "route='GET /downloads/{token}/{filename}'" in said and "secret-token" not in said


async def test_an_outage_of_the_catalog_is_told_once_and_not_for_each_request(
    context: Context, ann: User, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: object, **__: object) -> None:
        raise CatalogAway("the database does not answer")

    monkeypatch.setattr(type(context.catalog.runs), "list", away)

    answer = await ann.http.get("training_runs")

    assert answer.status_code == 503
    assert warnings_of(caplog) == []


async def test_a_client_that_leaves_in_the_middle_of_its_upload_is_no_failure(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    sent: list[Message] = []
    received = iter([{"type": "http.request", "body": b"{", "more_body": True}, {"type": "http.disconnect"}])

    async def receive() -> Message:
        return next(received)

    async def send(message: Message) -> None:
        sent.append(message)

    headers = [(b"host", b"localhost"), (b"x-api-key", b"tml-of-ann"), (b"content-type", b"application/json")]
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "POST",
        "path": "/api/v1/create_session",
        "headers": headers,
    }
    await served.app({**scope, "query_string": b"", "root_path": "", "scheme": "http"}, receive, send)

    assert sent[0]["status"] == 400
    assert warnings_of(caplog) == []


async def test_a_hostile_client_cannot_fill_the_log(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    transport = httpx.ASGITransport(served.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as stranger:
        for number in range(100):
            assert (await stranger.get(f"/api/v1/{number}")).status_code == 401

    assert len(warnings_of(caplog)) == 5


async def test_methods_that_a_client_made_up_are_one_kind_and_hide_no_failure_of_a_user(
    served: Served, ann: User, caplog: pytest.LogCaptureFixture
) -> None:
    transport = httpx.ASGITransport(served.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as stranger:
        for number in range(32):
            for path, host in (
                ("/api/v1/healthz", "localhost"),
                ("/api/v1/runs", "evil.example"),
                ("/docs", "localhost"),
            ):
                answer = await stranger.request(f"ODD{number}", path, headers={"Host": host})
                assert answer.status_code >= 400
    routes = {message.partition(" status=")[0] for message in warnings_of(caplog)}

    await ann.http.get("training_runs/nowhere")

    assert routes and all("route='(other) " in route for route in routes)
    assert "owner=ann" in warnings_of(caplog)[-1]
