from __future__ import annotations

from datetime import UTC, datetime, timedelta

from chockstone.api.context import Context
from chockstone.catalog.tables.usage import Use
from support.api.users import User, refusal, url_of

HOUR = timedelta(hours=1)


def this_hour() -> datetime:
    return datetime.now(UTC).replace(minute=0, second=0, microsecond=0)


def window(start: datetime, end: datetime) -> dict[str, str]:
    return {"starting_on": start.isoformat(), "ending_before": end.isoformat()}


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
