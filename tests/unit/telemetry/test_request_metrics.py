from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest
from fastapi import APIRouter, FastAPI
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.types import Receive, Scope, Send

from chockstone.telemetry.instruments import Instruments
from chockstone.telemetry.request_metrics import RequestMetrics
from support.exposition import series_of


@pytest.fixture
def instruments() -> Instruments:
    return Instruments()


@pytest.fixture
async def http(instruments: Instruments) -> AsyncIterator[httpx.AsyncClient]:
    async def things(thing: str) -> str:
        if thing == "broken":
            raise RuntimeError(thing)
        return thing

    async def stream() -> StreamingResponse:
        async def pieces() -> AsyncIterator[bytes]:
            yield str(series_of(instruments.render())["chockstone_http_requests_in_progress"]).encode()

        return StreamingResponse(pieces())

    async def mounted(scope: Scope, receive: Receive, send: Send) -> None:
        await PlainTextResponse("mounted")(scope, receive, send)

    routes = APIRouter(prefix="/api/v1")
    routes.add_api_route("/things/{thing}", things)
    app = FastAPI()
    app.include_router(routes)
    app.add_api_route("/slow", stream)
    app.mount("/mounted", mounted)
    app.add_middleware(RequestMetrics, instruments=instruments)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield client


async def test_requests_are_counted_by_template_and_status(http: httpx.AsyncClient, instruments: Instruments) -> None:
    for path in ("/api/v1/things/1", "/api/v1/things/2", "/api/v1/things/broken", "/nowhere", "/mounted/x"):
        await http.get(path)
    await http.request("POST", "/api/v1/things/1")

    found = series_of(instruments.render())
    requests = {name: value for name, value in found.items() if name.startswith("chockstone_http_requests_total")}
    assert requests == {
        'chockstone_http_requests_total{method="GET", route="/things/{thing}", status="200"}': 2,
        'chockstone_http_requests_total{method="GET", route="/things/{thing}", status="500"}': 1,
        'chockstone_http_requests_total{method="GET", route="(none)", status="404"}': 1,
        'chockstone_http_requests_total{method="GET", route="(forwarded)", status="200"}': 1,
        'chockstone_http_requests_total{method="POST", route="(none)", status="405"}': 1,
    }
    assert found['chockstone_http_request_seconds_count{method="GET", route="/things/{thing}"}'] == 3
    assert found["chockstone_http_requests_in_progress"] == 0


async def test_a_stream_is_in_progress_until_its_end(http: httpx.AsyncClient, instruments: Instruments) -> None:
    answer = await http.get("/slow")

    assert answer.text == "1.0"
    assert series_of(instruments.render())["chockstone_http_requests_in_progress"] == 0


async def test_a_client_that_left_without_an_answer_is_counted_and_not_timed(instruments: Instruments) -> None:
    async def leave(scope: Scope, receive: Receive, send: Send) -> None:
        pass

    async def nothing(*_: object) -> None:
        raise AssertionError

    await RequestMetrics(leave, instruments=instruments)(
        {"type": "http", "method": "GET", "path": "/"},
        nothing,  # type: ignore[arg-type]  # never called
        nothing,
    )

    found = series_of(instruments.render())
    assert found['chockstone_http_requests_total{method="GET", route="(none)", status="499"}'] == 1
    assert 'chockstone_http_request_seconds_count{method="GET", route="(none)"}' not in found


async def test_what_is_not_http_passes(instruments: Instruments) -> None:
    seen: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope["type"])

    async def nothing(*_: object) -> None:
        raise AssertionError

    await RequestMetrics(app, instruments=instruments)({"type": "lifespan"}, nothing, nothing)  # type: ignore[arg-type]  # never called

    assert seen == ["lifespan"]
