from __future__ import annotations

from datetime import UTC, datetime, timedelta

import httpx

from support.api.users import User, refusal, url_of

HOUR = timedelta(hours=1)


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


async def test_entries_are_found_by_user_and_run(ann: User, bob: User, root: User) -> None:
    runs = {"ann": await ann.run(), "bob": await bob.run()}
    await ann.save(runs["ann"], "a")
    await bob.save(runs["bob"], "b")
    await ann.http.post(f"training_runs/{runs['ann']}/checkpoints/weights/a/publish")
    await bob.http.get(f"training_runs/{runs['ann']}/checkpoints/weights/a/archive")

    def owners(answer: httpx.Response) -> list[str]:
        return [each["event_details"]["owner"] for each in answer.json()["entries"]]

    assert set(owners(await root.http.get("audit", params={"user": "bob"}))) == {"ann", "bob"}, "what he did, and his"
    assert set(owners(await root.http.get("audit", params={"run": runs["bob"]}))) == {"bob"}
    assert owners(await ann.http.get("audit", params={"run": runs["bob"]})) == []
    assert set(owners(await ann.http.get("audit", params={"user": "bob"}))) == {"ann"}, "what Bob did to hers"
    assert len(owners(await root.http.get("audit", params={"limit": 1}))) == 1
