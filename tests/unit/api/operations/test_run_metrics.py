from __future__ import annotations

import asyncio
import csv
import io
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx
import pytest
import uvicorn

from chockstone.api.context import Context
from chockstone.api.operations import run_metrics
from chockstone.engine.history.points import HistoryPoint
from support.api.loopback_server import serving
from support.api.users import KEYS, User, refusal
from support.loop_gate import LoopGate
from support.served import Served


async def train(context: Context, run_id: str, *numbers: int) -> None:
    """A pass and a step for each number."""
    live = await context.engine.wake(run_id)
    assert live is not None
    for number in numbers:
        await context.engine.training.forward_backward(live, None, str(number).encode())
        await context.engine.training.optim_step(live, None, {})
    await live.lane.drained()


async def read(user: User, run_id: str, **query: Any) -> dict[str, Any]:
    answer = await user.http.get(f"training_runs/{run_id}/metrics", params=query)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def reported(*rewards: float) -> dict[str, Any]:
    return {"points": [{"step": step, "values": {"reward": reward}} for step, reward in enumerate(rewards)]}


async def test_the_owner_reads_what_was_trained(context: Context, ann: User) -> None:
    run_id = await ann.run()
    await train(context, run_id, 8, 16)

    found = await read(ann, run_id)

    assert (found["run_id"], found["cursor"], found["has_more"]) == (run_id, 4, False)
    assert [(each["position"], each["step"], each["source"]) for each in found["points"]] == [
        (1, 0, "server"),
        (2, 1, "server"),
        (3, 1, "server"),
        (4, 2, "server"),
    ]
    assert found["points"][2]["values"] == {"loss": 4.0, "loss:sum": 4.0, "tokens": 16.0, "seconds": 0.0}
    assert found["points"][0]["at"] > 1.7e9
    assert found["points"][0]["sequence"] > 0
    assert "count" not in found["points"][0]


async def test_a_reader_follows_the_cursor(context: Context, ann: User) -> None:
    run_id = await ann.run()
    await train(context, run_id, 8, 16)

    first = await read(ann, run_id, limit=3)
    rest = await read(ann, run_id, after=first["cursor"], limit=3)

    assert ([each["position"] for each in first["points"]], first["has_more"]) == ([1, 2, 3], True)
    assert ([each["position"] for each in rest["points"]], rest["has_more"]) == ([4], False)
    assert (await read(ann, run_id, after=rest["cursor"]))["points"] == []


async def test_series_may_be_chosen_and_merged(context: Context, ann: User) -> None:
    run_id = await ann.run()
    await train(context, run_id, *([8, 16] * 20))

    chosen = await read(ann, run_id, names="loss,reward")
    merged = await read(ann, run_id, names="loss", max_points=5)

    assert len(chosen["points"]) == 40
    assert {tuple(each["values"]) for each in chosen["points"]} == {("loss",)}
    assert len(merged["points"]) == 5
    assert sum(each.get("count", 1) for each in merged["points"]) == 40
    assert merged["points"][2]["values"]["loss:min"] == 2.0
    assert merged["points"][2]["values"]["loss:max"] == 4.0


async def test_metrics_as_csv(context: Context, ann: User) -> None:
    run_id = await ann.run()
    await train(context, run_id, 8)
    await ann.http.post(f"training_runs/{run_id}/metrics", json=reported(0.5))

    answer = await ann.http.get(f"training_runs/{run_id}/metrics", params={"format": "csv"})

    assert answer.headers["content-type"].startswith("text/csv")
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    facts, series = ("position", "step", "at", "source", "count"), ("loss", "loss:sum", "reward", "seconds", "tokens")
    assert list(rows[0]) == [*facts, *series, "weight"]
    assert [(row["position"], row["source"], row["loss"], row["reward"]) for row in rows] == [
        ("1", "server", "2.0", ""),
        ("2", "server", "", ""),
        ("3", "client", "", "0.5"),
    ]


async def test_clients_report_series_of_their_own(context: Context, ann: User) -> None:
    run_id = await ann.run()
    await train(context, run_id, 8)

    answer = await ann.http.post(
        f"training_runs/{run_id}/metrics",
        json={"points": [{"step": 1, "values": {"reward": 1, "rl/kl": -0.25}, "at": 5.5}, *reported(0.5)["points"]]},
    )

    assert answer.json() == {"cursor": 4}
    found = (await read(ann, run_id, after=2))["points"]
    assert found[0] == {
        "position": 3,
        "at": 5.5,
        "step": 1,
        "source": "client",
        "values": {"reward": 1.0, "rl/kl": -0.25},
    }
    assert found[1]["at"] > 1.7e9


async def test_admins_read_any_run_and_report_to_their_own_only(
    context: Context, ann: User, bob: User, root: User
) -> None:
    run_id = await ann.run()
    await train(context, run_id, 8)

    assert await read(root, run_id) == await read(ann, run_id)
    for user in (bob, root):
        answer = await user.http.post(f"training_runs/{run_id}/metrics", json=reported(0.5))
        assert "not yours or not there" in refusal(answer, 404)
    for path in ("metrics", "metrics/stream"):
        strange = refusal(await bob.http.get(f"training_runs/{run_id}/{path}"), 404)
        assert strange.replace(run_id, "") == refusal(await bob.http.get(f"training_runs/nope/{path}"), 404).replace(
            "nope", ""
        )
    assert (await read(ann, run_id))["cursor"] == 2


@pytest.mark.parametrize("run_id", ["..%2F..%2Fetc%2Fpasswd", "s.train.0", "a:train:0%00", "%2e%2e", "x" * 3000])
async def test_ids_like_paths_lead_nowhere(ann: User, run_id: str) -> None:
    for answer in (
        await ann.http.get(f"training_runs/{run_id}/metrics"),
        await ann.http.post(f"training_runs/{run_id}/metrics", json=reported(0.5)),
        await ann.http.get(f"training_runs/{run_id}/metrics/stream"),
    ):
        assert answer.status_code in (400, 404, 422), answer.text


@pytest.mark.parametrize(
    "points",
    [
        [],
        [{"step": 1}],
        [{"step": 1, "values": {}}],
        [{"step": 1, "values": {"a": "1"}}],
        [{"step": 1, "values": {"a": None}}],
        [{"step": 1, "values": {"a": [1]}}],
        [{"step": 1, "values": {"a b": 1}}],
        [{"step": 1, "values": {"": 1}}],
        [{"step": 1, "values": {"-a": 1}}],
        [{"step": 1, "values": {"<script>": 1}}],
        [{"step": 1, "values": {"x" * 65: 1}}],
        [{"step": 1, "values": {"a\n": 1}}],
        [{"step": 1, "values": {f"s{index}": 1 for index in range(65)}}],
        [{"step": -1, "values": {"a": 1}}],
        [{"step": 2**60, "values": {"a": 1}}],
        [{"step": 1.5, "values": {"a": 1}}],
        [{"step": "1", "values": {"a": 1}}],
        [{"step": 1, "values": {"a": 1}, "at": -1}],
        [{"step": 1, "values": {"a": 1}, "at": 1e300}],
        [{"step": 1, "values": {"a": 10**400}}],
        [{"step": 1, "values": {"a": 1}}] * 1001,
        {"step": 1},
        "points",
    ],
    ids=lambda points: repr(points)[:60],
)
async def test_reports_that_make_no_sense_are_refused(ann: User, points: Any) -> None:
    run_id = await ann.run()

    answer = await ann.http.post(f"training_runs/{run_id}/metrics", json={"points": points})

    assert answer.status_code in (400, 422), answer.text
    assert (await read(ann, run_id))["points"] == []


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
async def test_numbers_that_are_not_finite_are_refused(ann: User, number: str) -> None:
    run_id = await ann.run()
    body = f'{{"points": [{{"step": 1, "values": {{"a": {number}}}}}]}}'

    answer = await ann.http.post(
        f"training_runs/{run_id}/metrics", content=body, headers={"Content-Type": "application/json"}
    )

    assert answer.status_code in (400, 422), answer.text
    assert (await read(ann, run_id))["points"] == []


async def test_reports_leave_the_reserve_of_the_disk_alone(context: Context, ann: User) -> None:
    run_id = await ann.run()
    context.status.disk.reserve_bytes = 1 << 62

    refused = await ann.http.post(f"training_runs/{run_id}/metrics", json=reported(0.5))
    context.status.disk.reserve_bytes = 0
    taken = await ann.http.post(f"training_runs/{run_id}/metrics", json=reported(0.5))

    assert "less free space than its reserve" in refusal(refused, 429)
    assert taken.json() == {"cursor": 1}


async def test_a_million_points_are_refused(ann: User) -> None:
    run_id = await ann.run()
    body = '{"points": [' + ",".join(['{"step":1,"values":{"a":1}}'] * 1_000_000) + "]}"

    answer = await ann.http.post(
        f"training_runs/{run_id}/metrics", content=body, headers={"Content-Type": "application/json"}
    )

    assert answer.status_code in (400, 413, 422)


async def test_more_series_than_a_run_may_have_are_refused(ann: User) -> None:
    run_id = await ann.run()
    for start in (0, 29):
        points = [{"step": 1, "values": {f"s{index}": 1 for index in range(start, start + 29)}}]
        assert (await ann.http.post(f"training_runs/{run_id}/metrics", json={"points": points})).status_code == 200

    answer = await ann.http.post(f"training_runs/{run_id}/metrics", json={"points": [{"step": 2, "values": {"t": 1}}]})

    assert "more than 64 series" in refusal(answer, 400)


@pytest.mark.parametrize(
    "query",
    [
        *({"after": -1}, {"after": "x"}, {"limit": 0}, {"limit": 10_001}, {"max_points": 1}, {"max_points": 10_001}),
        *({"format": "xml"}, {"names": ""}, {"names": ","}, {"names": "a b"}, {"names": "x" * 9000}),
        *({"names": ",".join(f"s{index}" for index in range(65))}, {"after": 10**30}),
    ],
    ids=str,
)
async def test_questions_that_make_no_sense_are_refused(ann: User, query: dict[str, Any]) -> None:
    run_id = await ann.run()

    answer = await ann.http.get(f"training_runs/{run_id}/metrics", params=query)

    assert answer.status_code in (400, 422), answer.text


@asynccontextmanager
async def listening(served: Served) -> AsyncIterator[httpx.AsyncClient]:
    """Ann, at a socket: a transport without one waits for the end of a stream."""
    config = uvicorn.Config(served.app, lifespan="off", log_config=None, timeout_graceful_shutdown=3)
    async with serving(config) as port:
        url = f"http://127.0.0.1:{port}/api/v1/"
        async with httpx.AsyncClient(
            base_url=url, headers={"X-API-Key": KEYS["ann"]}, timeout=30, trust_env=False
        ) as client:
            yield client


class Stream:
    """The events of an open stream, one after the other."""

    def __init__(self, answer: httpx.Response) -> None:
        self.answer = answer
        self._lines = answer.aiter_lines()

    async def event(self) -> tuple[int, list[int]] | None:
        """Its id and the positions of its points; None at the end."""
        event_id = 0
        async for line in self._lines:
            name, _, value = line.partition(": ")
            if name == "id":
                event_id = int(value)
            elif name == "data":
                return event_id, [each["position"] for each in json.loads(value)]
        return None


@asynccontextmanager
async def streaming(client: httpx.AsyncClient, run_id: str, **facts: Any) -> AsyncIterator[Stream]:
    async with client.stream("GET", f"training_runs/{run_id}/metrics/stream", **facts) as answer:
        yield Stream(answer)


async def test_a_stream_has_what_was_recorded_and_what_is_recorded_then(
    served: Served, context: Context, ann: User
) -> None:
    run_id = await ann.run()
    await train(context, run_id, 8)
    async with listening(served) as client, streaming(client, run_id) as stream:
        assert stream.answer.headers["content-type"].startswith("text/event-stream")
        assert await stream.event() == (2, [1, 2])

        await ann.http.post(f"training_runs/{run_id}/metrics", json=reported(0.5, 0.6))

        assert await stream.event() == (4, [3, 4])


async def test_a_stream_resumes_after_the_last_event(served: Served, context: Context, ann: User) -> None:
    run_id = await ann.run()
    await train(context, run_id, 8, 16)
    async with listening(served) as client:
        async with streaming(client, run_id, headers={"Last-Event-ID": "3"}, params={"after": 1}) as stream:
            assert await stream.event() == (4, [4])
        async with streaming(client, run_id, params={"after": 2}) as stream:
            assert await stream.event() == (4, [3, 4])
        async with streaming(client, run_id, headers={"Last-Event-ID": "rubbish"}) as stream:
            assert await stream.event() == (4, [1, 2, 3, 4])
        async with streaming(client, run_id, params={"names": "reward", "max_seconds": 0}) as stream:
            assert await stream.event() is None


async def test_a_long_history_comes_in_pages(
    served: Served, context: Context, ann: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_metrics, "_STREAM_PAGE", 3)
    run_id = await ann.run()
    await train(context, run_id, 8, 16)
    async with listening(served) as client, streaming(client, run_id, params={"max_seconds": 0}) as stream:
        assert [await stream.event() for _ in range(3)] == [(3, [1, 2, 3]), (4, [4]), None]


async def test_encoding_many_numbers_leaves_the_loop_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    values = {f"s{index}": index / 3 for index in range(58)}
    points = [HistoryPoint(number, None, 1.0, number, "client", values) for number in range(1, 101)]
    gate = LoopGate()
    monkeypatch.setattr(run_metrics, "_points_to_json", gate.before(run_metrics._points_to_json))

    async with gate.watch():
        event = await run_metrics.points_event(points, 100)

    assert event.startswith(b"id: 100\nevent: points\ndata: [")
    assert json.loads(event.partition(b"data: ")[2]) == [point.to_json() for point in points]


async def test_a_quiet_stream_shows_that_it_is_alive(
    served: Served, ann: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_metrics, "PING_SECONDS", 0.01)
    run_id = await ann.run()
    async with listening(served) as client, streaming(client, run_id) as stream:
        assert (await anext(stream._lines)).startswith(":")


async def test_a_stream_ends_when_the_server_stops(served: Served, context: Context, ann: User) -> None:
    run_id = await ann.run()
    async with listening(served) as client, streaming(client, run_id) as stream:
        reading = asyncio.ensure_future(stream.event())
        await ann.http.post(f"training_runs/{run_id}/metrics", json=reported(0.5))
        assert await reading == (1, [1])

        await context.engine.stop()

        assert await stream.event() is None
    refusal(await ann.http.get(f"training_runs/{run_id}/metrics/stream"), 503)


async def test_a_stream_ends_when_the_run_is_removed(served: Served, ann: User) -> None:
    run_id = await ann.run()
    await ann.http.post(f"training_runs/{run_id}/metrics", json=reported(0.5))
    async with listening(served) as client, streaming(client, run_id) as stream:
        assert await stream.event() == (1, [1])

        await ann.http.delete(f"training_runs/{run_id}")

        assert await stream.event() is None


async def test_a_stream_ends_when_the_key_is_revoked(
    served: Served, context: Context, ann: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_metrics, "PING_SECONDS", 0.01)
    run_id = await ann.run()
    await ann.http.post(f"training_runs/{run_id}/metrics", json=reported(0.5))
    async with listening(served) as client, streaming(client, run_id) as stream:
        assert await stream.event() == (1, [1])

        context.users._take({})

        assert await stream.event() is None


async def test_a_reader_that_falls_behind_is_dropped_and_misses_nothing(
    served: Served, context: Context, ann: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_metrics, "_STREAM_WAITING", 5)
    run_id = await ann.run()
    await ann.http.post(f"training_runs/{run_id}/metrics", json=reported(0.5))
    async with listening(served) as client:
        async with streaming(client, run_id) as stream:
            assert await stream.event() == (1, [1])
            await ann.http.post(f"training_runs/{run_id}/metrics", json=reported(*[0.5] * 6))
            assert await stream.event() is None
        async with streaming(client, run_id, headers={"Last-Event-ID": "1"}) as stream:
            assert await stream.event() == (7, [2, 3, 4, 5, 6, 7])


async def test_a_user_may_open_so_many_streams(served: Served, context: Context, ann: User) -> None:
    context.event_streams._max_per_user = 1
    run_id = await ann.run()
    await ann.http.post(f"training_runs/{run_id}/metrics", json=reported(0.5))
    async with listening(served) as client:
        async with streaming(client, run_id) as stream:
            assert await stream.event() == (1, [1])
            assert (await client.get(f"training_runs/{run_id}/metrics/stream")).status_code == 429
        async with asyncio.timeout(10):
            while len(context.event_streams):
                await asyncio.sleep(0.001)
        async with streaming(client, run_id) as stream:
            assert await stream.event() == (1, [1])


async def test_of_streams_opened_at_the_same_moment_those_too_many_are_refused_with_the_reason(
    served: Served, context: Context, ann: User
) -> None:
    context.event_streams._max_per_user = 2
    run_id = await ann.run()
    async with listening(served) as client, AsyncExitStack() as stack:

        async def connect() -> httpx.Response:
            return await stack.enter_async_context(client.stream("GET", f"training_runs/{run_id}/metrics/stream"))

        answers = await asyncio.gather(*(connect() for _ in range(8)))
        refused = [(await answer.aread()).decode() for answer in answers if answer.status_code == 429]

        assert sorted(answer.status_code for answer in answers) == [200] * 2 + [429] * 6
        assert all("2 event streams of yours are open" in text for text in refused)
