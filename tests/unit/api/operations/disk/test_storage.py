from __future__ import annotations

from datetime import timedelta

from chockstone.api.context import Context
from support.api.users import User, refusal, url_of


async def test_who_uses_how_much(ann: User, bob: User, root: User) -> None:
    runs = {"ann": await ann.run(), "bob": await bob.run()}
    for number in range(2):
        await ann.save(runs["ann"], f"s{number}")
    await bob.save(runs["bob"], "s")
    await ann.http.put(f"policies/run:{runs['ann']}", json={"quota_bytes": 10**9})
    await root.http.put("policies/user:ann", json={"quota_bytes": 2 * 10**9})

    own = (await ann.http.get("storage")).json()
    everyones = (await root.http.get("storage")).json()

    sizes = [each["size_bytes"] for each in (await ann.http.get("checkpoints")).json()["checkpoints"]]
    assert own["used"] == {"count": 2, "size_bytes": sum(sizes)}
    assert own["quota_bytes"] == 2 * 10**9
    assert own["users"] == [{"user_id": "ann", "count": 2, "size_bytes": sum(sizes), "quota_bytes": 2 * 10**9}]
    assert own["runs"] == [
        {
            "run_id": runs["ann"],
            "base_model": "tiny",
            "count": 2,
            "size_bytes": sum(sizes),
            "quota_bytes": 10**9,
        }
    ]
    assert own["trash"] == {"count": 0, "size_bytes": 0}
    assert own["disk"]["free_bytes"] > 0
    assert own["pending"] == []
    assert own["scrub"]["damaged"] == 0
    assert everyones["used"]["count"] == 3
    assert [each["user_id"] for each in everyones["users"]] == ["ann", "bob"]
    assert {each["run_id"] for each in everyones["runs"]} == set(runs.values())


async def test_a_sweep_tells_and_does(ann: User, bob: User) -> None:
    run_id, other = await ann.run(), await bob.run()
    paths = [await ann.save(run_id, f"s{number}") for number in range(3)]
    theirs = [await bob.save(other, f"s{number}") for number in range(3)]
    await ann.http.put("policies/user:ann", json={"keep_last": 1})
    await bob.http.put("policies/user:bob", json={"keep_last": 1})

    planned = (await ann.http.post("sweep", json={})).json()
    assert planned["dry_run"] is True
    assert {each["tinker_path"] for each in planned["removed"]} == set(paths[:2])
    assert all(each["reason"] and each["size_bytes"] for each in planned["removed"])
    assert [each["tinker_path"] for each in planned["kept"]] == [paths[2]]

    done = (await ann.http.post("sweep", json={"dry_run": False, "run_id": run_id})).json()

    assert {each["tinker_path"] for each in done["removed"]} <= set(paths[:2])  # the background sweep may be first
    assert not {each["tinker_path"] for each in done["removed"]} & set(theirs)
    assert await ann.listed(run_id) == ["weights/s2"]
    refusal(await ann.http.post("sweep", json={"dry_run": False, "run_id": other}), 404)
    refusal(await ann.http.post("sweep", json={"run_id": "../.."}), 400)
    refusal(await ann.http.post("sweep", json={"dry_run": "no"}), 422)


async def test_what_has_expired_is_swept(context: Context, ann: User) -> None:
    run_id = await ann.run()
    path = await ann.save(run_id, "short", ttl_seconds=3600)
    await ann.save(run_id, "long")
    hour_ago = context.now() - timedelta(hours=1)
    await context.catalog.checkpoints.set_expiry(run_id, "weights", "short", hour_ago, now=context.now())

    swept = (await ann.http.post("sweep", json={"dry_run": False})).json()

    assert [each["tinker_path"] for each in swept["removed"]] == [path]
    assert swept["freed_bytes"] > 0
    assert (await ann.http.get(url_of(path))).status_code == 404
