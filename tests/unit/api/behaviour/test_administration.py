"""The audit, the bill and the trace."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from chockstone.api.context import Context
from chockstone.api.downloads.signed_urls import sign_for
from chockstone.api.users import Caller, digest_of
from chockstone.catalog.tables.usage import Use
from chockstone.catalog.tables.users import KeyRow
from support.api.users import User, refusal, url_of
from support.served import Served

HOUR = timedelta(hours=1)


def this_hour() -> datetime:
    return datetime.now(UTC).replace(minute=0, second=0, microsecond=0)


def window(start: datetime, end: datetime) -> dict[str, str]:
    return {"starting_on": start.isoformat(), "ending_before": end.isoformat()}


async def test_what_was_done_is_in_the_owner_s_audit(ann: User, bob: User, root: User) -> None:
    path = await ann.save(await ann.run(), "seen")
    await ann.http.post(url_of(path, "publish"))
    await bob.http.get(url_of(path, "archive"))
    await ann.http.put(url_of(path, "ttl"), json={"ttl_seconds": 3600})
    await ann.http.delete(url_of(path))

    entries = (await ann.http.get("audit", params={"event_type": "checkpoints"})).json()["entries"]

    about = [each for each in entries if each.get("tinker_path") == path]
    assert [each["event"] for each in about] == [
        "checkpoint_saved", "checkpoint_published", "checkpoint_read", "checkpoint_ttl_set", "checkpoint_deleted",
    ]  # fmt: skip
    read = about[2]
    assert (read["purpose"], read["event_details"]["by"], read["event_details"]["owner"]) == ("download", "bob", "ann")
    assert datetime.fromisoformat(read["timestamp"]).tzinfo is not None
    assert (await bob.http.get("audit")).json()["entries"] == []
    assert len((await root.http.get("audit")).json()["entries"]) >= 5
    today = (await ann.http.get("audit", params={"day": f"{datetime.now(UTC):%Y-%m-%d}"})).json()["entries"]
    assert len(today) >= 5 or datetime.now(UTC).time() < (datetime.min + HOUR).time()
    assert (await ann.http.get("audit", params={"day": "2020-01-01"})).json()["entries"] == []
    assert (await ann.http.get("audit", params={"event_type": "teams"})).json()["entries"] == []
    for query in ("event_type=x", "day=today", "day=2026-13-01"):
        refusal(await ann.http.get(f"audit?{query}"), 422)


async def test_usage_is_told_by_the_hour(context: Context, ann: User, bob: User, root: User) -> None:
    session_id = await ann.session(user_metadata={"team": "a"})
    hour = this_hour()
    facts = {"session_id": session_id, "project_id": "p", "base_model": "tiny"}
    uses = [
        Use(hour - HOUR, "ann", type="training", cached=False, amount=120, **facts),
        Use(hour, "ann", type="sampling_prefill", cached=False, amount=7, **facts),
        Use(hour, "ann", type="sampling_sample", cached=False, amount=30, **facts),
        Use(hour, "ann", type="checkpoint", cached=False, amount=2, **facts),
        Use(hour - 3 * HOUR, "ann", None, None, "", "storage", False, 0.25),
        Use(hour - 30 * HOUR, "ann", type="training", cached=False, amount=1, **facts),
    ]  # fmt: skip
    await context.catalog.usage.add(uses)

    answer = (await ann.http.get("billing/usage/events", params=window(hour - 10 * HOUR, hour + HOUR))).json()

    assert [each["event_info"] for each in answer["data"]] == [
        {"type": "storage", "gigabyte_hours": 0.25},
        {"type": "training", "token_count": 120},
        {"type": "sampling_sample", "token_count": 30},
        {"type": "sampling_prefill", "cached": False, "token_count": 7},
        {"type": "checkpoint", "count": 2},
    ]
    first, second = answer["data"][:2]
    assert "session_id" not in first
    assert (second["session_id"], second["project_id"], second["user_id"]) == (session_id, "p", "ann")
    assert datetime.fromisoformat(second["bucket_end"]) - datetime.fromisoformat(second["bucket_start"]) == HOUR
    assert answer["sessions"] == {session_id: {"user_metadata": {"team": "a"}}}
    everyones = (await root.http.get("billing/usage/events", params=window(hour - 10 * HOUR, hour + HOUR))).json()
    assert everyones["data"] == answer["data"]
    others = (await bob.http.get("billing/usage/events", params=window(hour - 10 * HOUR, hour + HOUR))).json()
    assert others == {"data": [], "sessions": {}}


async def test_a_window_is_of_whole_hours_and_two_weeks_at_most(ann: User) -> None:
    hour = this_hour()
    for start, end, words in (
        (hour + timedelta(minutes=1), hour + HOUR, "beginning of an hour"),
        (hour, hour, "later than starting_on"),
        (hour, hour - HOUR, "later than starting_on"),
        (hour - timedelta(days=14, hours=1), hour, "14 days"),
        (hour + 2 * HOUR, hour + 3 * HOUR, "in the future"),
    ):
        assert words in refusal(await ann.http.get("billing/usage/events", params=window(start, end)), 400)
    for edge in ("0001-01-01T00:00:00+05:00", "9999-12-31T22:00:00-05:00"):  # of no year in UTC
        query = {"starting_on": edge, "ending_before": edge}
        assert "beginning of an hour" in refusal(await ann.http.get("billing/usage/events", params=query), 400)
    for query in ({}, {"starting_on": "now", "ending_before": "then"}, window(hour.replace(tzinfo=None), hour)):
        refusal(await ann.http.get("billing/usage/events", params=query), 422)


async def test_stored_bytes_are_told_by_project_and_user(ann: User, bob: User, root: User) -> None:
    in_project = await ann.run(await ann.session(project_id="p"))
    for name in ("a", "b"):
        await ann.save(in_project, name)
    await ann.save(await ann.run(), "c")
    await bob.save(await bob.run(), "d")

    data = (await ann.http.get("billing/usage/checkpoints/current")).json()["data"]
    of_project = (await ann.http.get("billing/usage/checkpoints/current", params={"project_id": "p"})).json()["data"]

    assert [(each.get("project_id"), each["checkpoint_count"]) for each in data] == [("p", 2), (None, 1)]
    assert data[0]["size_gigabytes"] == data[0]["size_bytes"] / 1e9 > 0
    assert data[0]["org_user_urn"] == "ann"
    assert of_project == data[:1]
    everyones = (await root.http.get("billing/usage/checkpoints/current")).json()["data"]
    assert {each["user_name"] for each in everyones} == {"ann", "bob"}


async def test_stored_bytes_are_real_ones_that_copies_share(ann: User, bob: User, root: User) -> None:
    path = await ann.save(await ann.run(), "a")
    size_bytes = (await ann.entry(path))["size_bytes"]
    await ann.http.post(url_of(path, "publish"))
    for _ in range(2):
        copied = await bob.http.post("copy_weights", json={"source_path": path})
        assert copied.status_code == 200, copied.text

    async def used(user: User) -> dict[str, tuple[int, int]]:
        data = (await user.http.get("billing/usage/checkpoints/current")).json()["data"]
        return {each["user_name"]: (each["checkpoint_count"], each["size_bytes"]) for each in data}

    assert await used(root) == {"ann": (1, size_bytes), "bob": (2, 0)}
    assert await used(bob) == {"bob": (2, 0)}
    storage = (await bob.http.get("storage")).json()
    assert storage["used"] == {"count": 2, "size_bytes": 2 * size_bytes}, "as quotas count"
    await ann.http.delete(url_of(path))
    assert await used(root) == {"bob": (2, size_bytes)}


async def test_a_trace_is_fetched_without_credentials(served: Served, context: Context, ann: User, bob: User) -> None:
    session_id = await ann.session(display_name="sweep é")
    run_id = await ann.run(session_id)
    path = await ann.save(run_id, "traced", user_metadata={"loss": "0.25"})
    facts = {"session_id": session_id, "project_id": None, "base_model": "tiny"}
    await context.catalog.usage.add([Use(this_hour(), "ann", type="training", cached=False, amount=9, **facts)])
    body = {"session_id": session_id, "sampling_session_seq_id": 0, "base_model": "tiny"}
    await ann.http.post("create_sampling_session", json=body)

    answer = (await ann.http.get(f"sessions/{session_id}/trace_export")).json()
    trace = await served.http.get(answer["url"], headers={"X-API-Key": ""})

    assert answer["status"] == "ready"
    assert answer["url"].endswith(f"/{session_id}.pftrace")
    assert trace.status_code == 200
    assert int(trace.headers["content-length"]) == len(trace.content)
    assert trace.content[:1] == b"\n"  # the first packet of a Trace
    for text in (run_id, path, "weights/traced", "sweep é", "checkpoint_saved", "training (tokens per hour)", "0.25"):
        assert text.encode() in trace.content, text
    assert f"{session_id}:sample:0".encode() in trace.content
    refusal(await bob.http.get(f"sessions/{session_id}/trace_export"), 404)


async def test_a_signed_url_reaches_nothing_else(served: Served, context: Context, ann: User) -> None:
    session_id = await ann.session()
    path = await ann.save(await ann.run(session_id), "mine")
    trace = (await ann.http.get(f"sessions/{session_id}/trace_export")).json()["url"]
    archive = (await ann.http.get(url_of(path, "archive"))).headers["location"]
    token = trace.partition("/traces/")[2].partition("/")[0]

    for url in (
        trace.replace("/traces/", "/downloads/"),
        archive.replace("/downloads/", "/traces/"),
        trace.replace(token, token[:-2] + ("AA" if token[-2:] != "AA" else "BB")),
        trace.replace(token, "x" + token),
        trace.replace(token, "."),
        trace.replace(token, "x"),
    ):
        answer = await served.http.get(url, headers={"X-API-Key": ""})
        assert answer.status_code in (401, 403, 404), url
        assert answer.json()["detail"]
    late = sign_for(context, Caller("ann"), {"trace": session_id}, expires_at=context.now() - timedelta(seconds=1))
    answer = await served.http.get(trace.replace(token, late), headers={"X-API-Key": ""})
    assert "expired" in refusal(answer, 410)


async def test_a_signed_url_ends_with_the_key_that_asked_for_it(
    served: Served, context: Context, ann: User, bob: User
) -> None:
    rows = [KeyRow(1, "ann", digest_of("tml-second"), "cond", "", context.now(), None)]
    context.users.reload(rows)
    session_id = await ann.session()
    path = await ann.save(await ann.run(session_id), "mine")
    second = {"X-API-Key": "tml-second"}
    token = {"X-API-Key": (await ann.http.post("auth/token", headers=second)).json()["jwt"]}

    async def urls(headers: dict[str, str]) -> list[str]:
        archive = (await ann.http.get(url_of(path, "archive"), headers=headers)).headers["location"]
        return [archive, (await ann.http.get(f"sessions/{session_id}/trace_export", headers=headers)).json()["url"]]

    async def statuses(urls: list[str]) -> list[int]:
        return [(await served.http.get(url, headers={"X-API-Key": ""})).status_code for url in urls]

    of_first, of_second, of_token = await urls({}), await urls(second), await urls(token)
    assert await statuses(of_first + of_second + of_token) == [200] * 6

    context.users.reload([replace(row, revoked_at=context.now()) for row in rows])

    assert await statuses(of_first) == [200] * 2
    assert await statuses(of_second + of_token) == [403] * 4


@pytest.mark.parametrize("session_id", ["x", "..", "é", "%00", "x" * 3000])
async def test_a_trace_of_nothing_is_not_found(ann: User, session_id: str) -> None:
    refusal(await ann.http.get(f"sessions/{session_id}/trace_export"), 404)
