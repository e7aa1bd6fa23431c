from __future__ import annotations

import asyncio
import os

import httpx
import pytest
from starlette.types import Receive, Scope, Send

from chockstone.telemetry import tracing
from chockstone.telemetry.tracing import TracingConfig
from support.otlp_collector import collecting
from unit.api.replica.conftest import Recorder, Start, answer, read

KEY = b"X-API-Key: tml-of-ann\r\n"


async def test_a_request_arrives_as_it_was_sent(start: Start) -> None:
    engine = Recorder()
    replica = await start(engine)

    await replica.http.put("/api/v1/a%2Fb/c%20d?x=%26&&y=1+2&z", content=b"\x00\xff" * 1000)

    [scope] = engine.scopes
    assert (scope["method"], scope["raw_path"]) == ("PUT", b"/api/v1/a%2Fb/c%20d")
    assert scope["query_string"] == b"x=%26&&y=1+2&z"
    assert engine.bodies == [b"\x00\xff" * 1000]
    assert engine.header("X-API-Key") == [b"tml-of-ann"]
    assert engine.header("Host") == [replica.url.removeprefix("http://").encode()]  # so URLs lead back here
    assert engine.header("Content-Length") == [b"2000"]
    assert engine.header("User-Agent") == [replica.http.headers["user-agent"].encode()]
    assert engine.header("X-Forwarded-For") == [b"127.0.0.1"]


async def test_an_answer_arrives_as_it_was_given(start: Start) -> None:
    engine = Recorder(
        302, [(b"location", b"/elsewhere"), (b"set-cookie", b"a=1"), (b"set-cookie", b"b=2")], b"\x1f\x8b not gzip"
    )
    engine.headers += [(b"content-encoding", b"gzip"), (b"retry-after", b"7")]
    replica = await start(engine)

    async with replica.http.stream("GET", "/anything") as given:
        body = b"".join([piece async for piece in given.aiter_raw()])

    assert (given.status_code, given.headers["location"], body) == (302, "/elsewhere", b"\x1f\x8b not gzip")
    assert given.headers.get_list("set-cookie") == ["a=1", "b=2"]
    assert given.headers["retry-after"] == "7"
    assert len(given.headers.get_list("date")) == len(given.headers.get_list("server")) == 1


async def test_what_one_client_is_given_to_keep_reaches_no_other(start: Start) -> None:
    engine = Recorder(headers=[(b"set-cookie", b"who=ann; Path=/")])
    replica = await start(engine)

    for _ in range(2):
        await replica.http.get("/anything", headers={"Cookie": ""})

    assert engine.header("Cookie") == [b""]


async def test_what_concerns_one_connection_stays_on_its_side(start: Start) -> None:
    engine = Recorder(headers=[(b"connection", b"x-hop, close"), (b"x-hop", b"1"), (b"keep-alive", b"timeout=9")])
    replica = await start(engine)

    given = await replica.raw(
        b"POST /x HTTP/1.1\r\nHost: here\r\n" + KEY + b"Connection: close, X-Mine\r\nX-Mine: 1\r\nKeep-Alive: 9\r\n"
        b"TE: trailers\r\nProxy-Connection: keep-alive\r\nUpgrade: h2c\r\nTransfer-Encoding: chunked\r\n"
        b"X-Forwarded-For: 6.6.6.6\r\nX-Forwarded-Proto: https\r\nForwarded: for=6.6.6.6\r\nX-Theirs: 2\r\n\r\n"
        b"3\r\nabc\r\n4;ext=1\r\ndefg\r\n0\r\n\r\n"
    )

    assert engine.bodies == [b"abcdefg"]
    for name in ("X-Mine", "Keep-Alive", "TE", "Proxy-Connection", "Upgrade", "Forwarded"):
        assert engine.header(name) == [], name
    assert engine.header("X-Theirs") == [b"2"]
    forwarded = [engine.header("X-Forwarded-For"), engine.header("X-Forwarded-Proto")]
    assert forwarded == [[b"6.6.6.6"], [b"https"]]  # a proxy on the same machine is believed, and repeated once
    head, _, body = given.partition(b"\r\n\r\n")
    assert body == b"{}"
    assert b"x-hop" not in head.lower()
    assert b"timeout=9" not in head


async def test_both_bodies_pass_while_they_are_sent(start: Start) -> None:
    async def echo(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while (message := await receive())["type"] == "http.request" and message.get("more_body"):
            await send({"type": "http.response.body", "body": message["body"], "more_body": True})
        await send({"type": "http.response.body"})

    replica = await start(echo)
    reader, writer = await replica.connect()

    writer.write(b"POST /x HTTP/1.1\r\nHost: here\r\n" + KEY + b"Transfer-Encoding: chunked\r\n\r\n")
    for word in (b"first", b"other"):  # each is answered before the next is sent
        writer.write(b"5\r\n" + word + b"\r\n")
        assert (await asyncio.wait_for(reader.readuntil(word), 10)).endswith(word)
    writer.close()


async def test_a_client_that_leaves_takes_its_long_poll_with_it(start: Start) -> None:
    is_held, has_left = asyncio.Event(), asyncio.Event()

    async def hold(scope: Scope, receive: Receive, send: Send) -> None:
        await read(receive)
        is_held.set()
        while (await receive())["type"] != "http.disconnect":
            pass
        has_left.set()

    replica = await start(hold)
    _, writer = await replica.connect()

    writer.write(b"POST /api/v1/retrieve_future HTTP/1.1\r\nHost: here\r\n" + KEY + b"Content-Length: 2\r\n\r\n{}")
    await asyncio.wait_for(is_held.wait(), 10)
    writer.close()

    await asyncio.wait_for(has_left.wait(), 10)


async def test_a_client_that_leaves_while_it_sends_takes_its_request_with_it(start: Start) -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def take(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        begun.set()
        while (await receive())["type"] != "http.disconnect":
            pass
        ended.set()

    replica = await start(take)
    _, writer = await replica.connect()

    writer.write(b"POST /x HTTP/1.1\r\nHost: here\r\n" + KEY + b"Content-Length: 99\r\n\r\nsome")
    await asyncio.wait_for(begun.wait(), 10)
    writer.close()

    await asyncio.wait_for(ended.wait(), 10)


async def test_an_answer_that_breaks_off_is_not_taken_for_a_whole_one(start: Start) -> None:
    async def break_off(scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-length", b"100")] if scope["path"] == "/sized" else []
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"some", "more_body": True})

    replica = await start(break_off)

    for path in ("/sized", "/chunked"):
        with pytest.raises(httpx.RemoteProtocolError):
            await replica.http.get(path)


async def test_a_body_that_is_refused_is_refused_before_all_of_it_was_sent(start: Start) -> None:
    async def refuse(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await answer(send, b'{"detail": "too large"}', status=413)

    replica = await start(refuse)
    reader, writer = await replica.connect()

    writer.write(b"POST /x HTTP/1.1\r\nHost: here\r\n" + KEY + b"Content-Length: 99999999999\r\n\r\n" + b"x" * 70_000)
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)

    assert head.startswith(b"HTTP/1.1 413")
    writer.close()
    assert (await replica.http.get("/x")).status_code == 413  # on a connection that nothing of the other is on


async def test_little_of_a_large_body_is_held(start: Start) -> None:
    """The engine takes nothing: so does, soon, the replica."""
    goes_on = asyncio.Event()

    async def wait(scope: Scope, receive: Receive, send: Send) -> None:
        await goes_on.wait()
        size, is_more = 0, True
        while is_more:
            message = await receive()
            size, is_more = size + len(message["body"]), message["more_body"]
        await answer(send, str(size).encode())

    replica = await start(wait)
    reader, writer = await replica.connect()
    total = 64 << 20

    async def upload() -> None:
        head = b"POST /x HTTP/1.1\r\nHost: here\r\nConnection: close\r\n" + KEY
        writer.write(head + f"Content-Length: {total}\r\n\r\n".encode())
        for _ in range(total >> 16):
            writer.write(b"x" * (1 << 16))
            await writer.drain()

    before = resident_bytes()
    uploading = asyncio.create_task(upload())
    _, pending = await asyncio.wait({uploading}, timeout=1)

    assert pending, "nobody took the body, and all of it was sent"
    assert resident_bytes() - before < total // 2
    goes_on.set()
    await uploading
    assert (await reader.read()).endswith(str(total).encode())
    writer.close()


def resident_bytes() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def test_a_client_that_stops_sending_is_let_go(start: Start) -> None:
    replica = await start(Recorder(), stall_seconds=0.05)

    reader, writer = await replica.connect()
    writer.write(b"POST /x HTTP/1.1\r\nHost: here\r\n" + KEY + b"Content-Length: 99\r\n\r\nsome")

    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
    assert head.startswith(b"HTTP/1.1 408")
    writer.close()


async def test_a_client_that_stops_taking_is_let_go_and_the_engine_is_free(start: Start) -> None:
    has_ended = asyncio.Event()

    async def pour(scope: Scope, receive: Receive, send: Send) -> None:
        leaving = asyncio.create_task(left(receive))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while not leaving.done():
            await send({"type": "http.response.body", "body": b"x" * (1 << 20), "more_body": True})
            await asyncio.sleep(0)
        has_ended.set()

    async def left(receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    replica = await start(pour, stall_seconds=0.1)
    _, writer = await replica.connect()

    writer.transport.pause_reading()  # type: ignore[attr-defined]  # it is a socket's
    writer.write(b"GET /x HTTP/1.1\r\nHost: here\r\n" + KEY + b"\r\n")

    await asyncio.wait_for(has_ended.wait(), 10)
    writer.close()


@pytest.mark.parametrize(
    ("line", "status"),
    [
        (b"TRACE / HTTP/1.1", b"405"),
        (b"OPTIONS * HTTP/1.1", b"4"),
        (b"GET http://elsewhere.test/x HTTP/1.1", b"200"),
        (b"GET //elsewhere.test/x HTTP/1.1", b"200"),
        (b"GET @elsewhere.test/x HTTP/1.1", b"400"),
        (b"GET /\xff HTTP/1.1", b"4"),
        (b"NONSENSE / HTTP/1.1", b"400"),
    ],
)
async def test_whatever_the_request_line_says_only_the_engine_is_asked(
    start: Start, line: bytes, status: bytes
) -> None:
    engine = Recorder()
    replica = await start(engine)

    given = await replica.raw(line + b"\r\nHost: here\r\nConnection: close\r\n" + KEY + b"\r\n")

    assert given.startswith(b"HTTP/1.1 " + status), given
    assert len(engine.scopes) == (1 if status == b"200" else 0)


@pytest.mark.parametrize(
    "headers",
    [
        b"Content-Length: 4\r\nContent-Length: 5\r\n",
        b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n",
        b"Content-Length: -1\r\n",
        b"Content-Length: 4, 4\r\n",
        b"Transfer-Encoding: xchunked\r\nContent-Length: 4\r\n",
        b"X-API-Key: tml-of-bob\r\n",
    ],
)
async def test_a_request_that_could_be_read_in_two_ways_is_not_passed_on(start: Start, headers: bytes) -> None:
    engine = Recorder()
    replica = await start(engine)

    given = await replica.raw(
        b"POST /x HTTP/1.1\r\nHost: here\r\nConnection: close\r\n" + KEY + headers + b"\r\nGET /y HTTP/1.1\r\n\r\n"
    )

    assert given.startswith(b"HTTP/1.1 400"), given
    assert engine.scopes == []


async def test_the_engine_gets_the_id_of_the_request_and_the_client_gets_it_once(start: Start) -> None:
    engine = Recorder(headers=[(b"x-request-id", b"r-1")])
    replica = await start(engine)

    known = await replica.http.get("/api/v1/anything", headers={"X-Request-ID": "r-1"})
    forwarded = engine.header("X-Request-ID")
    made = await replica.http.get("/api/v1/anything", headers={"X-Request-ID": "not\ta valid id"})

    assert (known.headers.get_list("x-request-id"), forwarded) == (["r-1"], [b"r-1"])
    assert made.headers.get_list("x-request-id") == [engine.header("X-Request-ID")[0].decode()]
    assert len(made.headers["x-request-id"]) == 16


async def test_the_trace_of_a_client_reaches_the_engine(start: Start) -> None:
    engine = Recorder()
    replica = await start(engine)
    traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

    await replica.http.get("/api/v1/anything", headers={"traceparent": traceparent})

    assert engine.header("traceparent") == [traceparent.encode()]


async def test_a_replica_that_traces_is_between_the_client_and_the_engine(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "10")  # milliseconds between two exports
    engine = Recorder()
    replica = await start(engine)
    trace_id = "0af7651916cd43dd8448eb211c80319c"

    with collecting() as collector:
        await asyncio.to_thread(tracing.start, TracingConfig(collector.url), role="replica")
        try:
            await replica.http.get("/api/v1/anything", headers={"traceparent": f"00-{trace_id}-b7ad6b7169203331-01"})
            spans = await asyncio.to_thread(  # the span ends after the client has its answer
                collector.until, lambda spans: any(each.trace_id == trace_id for each in spans)
            )
        finally:
            await asyncio.to_thread(tracing.stop)
        [span] = [each for each in spans if each.trace_id == trace_id]

    assert (span.name, span.parent_id) == ("GET (forwarded)", "b7ad6b7169203331")
    assert engine.header("traceparent") == [f"00-{trace_id}-{span.span_id}-01".encode()]


async def test_a_replica_logs_its_own_failures_and_leaves_those_of_the_engine_to_it(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    engine = Recorder(404, body=b'{"detail": "no such thing"}')
    replica = await start(engine)

    await replica.http.get("/api/v1/anything")
    await replica.http.get("/api/v1/training_runs/nowhere")

    [said] = [record.getMessage() for record in caplog.records if record.getMessage().startswith("request failed")]
    assert "route='GET /training_runs/{run_id}' status=404 owner=ann" in said
