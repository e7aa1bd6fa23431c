from __future__ import annotations

from pathlib import Path

import pytest

from chockstone.api.context import Context
from chockstone.engine.config import StorageRules
from support.api.users import User, refusal, url_of


@pytest.fixture
def rules() -> StorageRules:
    return StorageRules(trash_seconds=3600, reserve_bytes=0)


async def test_what_was_deleted_can_be_brought_back_by_its_owner(ann: User, bob: User) -> None:
    run_id = await ann.run()
    path = await ann.save(run_id, "regretted", user_metadata={"note": "x"})
    await ann.http.delete(url_of(path))
    [entry] = (await ann.http.get("trash")).json()["entries"]

    assert entry["tinker_path"] == path
    assert entry["reason"] == "deleted"
    assert entry["size_bytes"] > 0
    assert entry["purge_at"] > entry["discarded_at"]
    assert (await bob.http.get("trash")).json()["entries"] == []
    theirs = refusal(await bob.http.post(f"trash/{entry['trash_id']}/restore", json={}), 404)
    nobodys = refusal(await bob.http.post("trash/999999/restore", json={}), 404)
    assert theirs.replace(str(entry["trash_id"]), "ID") == nobodys.replace("999999", "ID")

    restored = await ann.http.post(f"trash/{entry['trash_id']}/restore", json={})

    assert restored.json() == {"tinker_path": path, "spared_seconds": 3600}
    assert (await ann.entry(path))["user_metadata"] == {"note": "x"}
    refusal(await ann.http.post(f"trash/{entry['trash_id']}/restore", json={}), 404)


async def test_an_expiry_that_has_passed_is_told_to_be_gone(context: Context, ann: User) -> None:
    run_id = await ann.run()
    path = await ann.save(run_id, "late")
    await ann.save(run_id, "newest")
    row = await context.catalog.checkpoints.get(run_id, "weights", "late", now=context.now())
    await context.engine.checkpoints.set_ttl(row, -1, by="ann")
    await ann.http.post("sweep", json={"dry_run": False})
    [entry] = (await ann.http.get("trash")).json()["entries"]

    restored = await ann.http.post(f"trash/{entry['trash_id']}/restore", json={})

    assert restored.json() == {"tinker_path": path, "lost_expiry": True, "spared_seconds": 3600}
    assert "expires_at" not in await ann.entry(path)


async def test_under_another_name_where_its_own_is_taken(ann: User) -> None:
    run_id = await ann.run()
    path = await ann.save(run_id, "name")
    await ann.save(run_id, "name", overwrite=True)
    [entry] = (await ann.http.get("trash")).json()["entries"]
    restore = f"trash/{entry['trash_id']}/restore"

    assert "exists already" in refusal(await ann.http.post(restore, json={}), 400)
    assert "1 to 255 characters" in refusal(await ann.http.post(restore, json={"name": "latest"}), 400)
    restored = (await ann.http.post(restore, json={"name": "older"})).json()

    assert restored["tinker_path"] == path.replace("/name", "/older")
    assert sorted(await ann.listed(run_id)) == ["weights/name", "weights/older"]


async def test_the_trash_is_emptied_of_one_s_own_alone(store: Path, ann: User, bob: User, root: User) -> None:
    for user in (ann, bob):
        await user.http.delete(url_of(await user.save(await user.run(), "gone")))
    sizes = {user.user_id: (await user.http.get("trash")).json()["entries"][0]["size_bytes"] for user in (ann, bob)}
    assert len((await root.http.get("trash")).json()["entries"]) == 2

    assert (await ann.http.delete("trash")).json() == {"freed_bytes": sizes["ann"]}
    assert (await ann.http.delete("trash")).json() == {"freed_bytes": 0}
    assert (await ann.http.get("trash")).json()["entries"] == []
    assert (await root.http.delete("trash")).json() == {"freed_bytes": sizes["bob"]}
    assert list(store.rglob("*.tar")) == []


@pytest.mark.parametrize("trash_id", ["x", "-1", "1.5", str(2**63), str(10**40), "%00", ""])
async def test_what_is_no_entry_is_refused(ann: User, trash_id: str) -> None:
    answer = await ann.http.post(f"trash/{trash_id}/restore", json={})

    assert answer.status_code in (404, 422)
    assert answer.json()["detail"]
