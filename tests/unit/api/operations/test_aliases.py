from __future__ import annotations

from chockstone.api.context import Context
from support.api.users import User, refusal, url_of


async def test_an_alias_is_switched_undone_and_removed_with_audit(context: Context, ann: User) -> None:
    run_id = await ann.run()
    one, two = [await ann.save(run_id, name) for name in ("one", "two")]
    for target in (one, two):
        assert (await ann.http.put("aliases/prod", json={"target": target})).json()["target"] == target

    undone = (await ann.http.post("aliases/prod/undo", json={})).json()
    removed = (await ann.http.delete("aliases/prod")).json()

    assert (undone["target"], undone["revision"], undone["changed_by"]) == (one, 3, "ann")
    assert "target" not in removed
    assert (await ann.http.get("aliases")).json() == {"aliases": []}
    changes = (await ann.http.get("aliases/prod/history")).json()["changes"]
    assert [change["action"] for change in changes] == ["remove", "undo", "set", "set"]
    await context.engine.audit.flush()
    events = [row.event for row in await context.catalog.audit.list("ann", prefix="alias_")]
    assert events == ["alias_set", "alias_set", "alias_undone", "alias_removed"]


async def test_users_do_not_see_or_change_aliases_of_others(ann: User, bob: User) -> None:
    path = await ann.save(await ann.run(), "one")
    await ann.http.put("aliases/prod", json={"target": path})

    assert (await bob.http.get("aliases")).json() == {"aliases": []}
    refusal(await bob.http.get("aliases/prod/history"), 404)
    refusal(await bob.http.post("aliases/prod/undo", json={}), 404)
    refusal(await bob.http.delete("aliases/prod"), 404)
    assert "not yours" in refusal(await bob.http.put("aliases/prod", json={"target": path}), 404)


async def test_server_wide_aliases_are_for_admins_and_published_checkpoints(ann: User, bob: User, root: User) -> None:
    run_id = await root.run()
    path = await root.save(run_id, "one")
    wanted = {"target": path, "server_wide": True}

    assert "only admins" in refusal(await ann.http.put("aliases/prod", json=wanted), 403)
    assert "Publish it first" in refusal(await root.http.put("aliases/prod", json=wanted), 400)
    await root.http.post(f"{url_of(path)}/publish")
    assert (await root.http.put("aliases/prod", json=wanted)).status_code == 200
    [seen] = (await bob.http.get("aliases")).json()["aliases"]
    assert (seen["target"], seen["server_wide"]) == (path, True)
    assert "only admins" in refusal(await bob.http.delete("aliases/prod?server_wide=true"), 403)


async def test_a_checkpoint_that_an_alias_points_at_is_kept(context: Context, ann: User) -> None:
    run_id = await ann.run()
    one = await ann.save(run_id, "one")
    two, three = [await ann.save(run_id, name) for name in ("two", "three")]
    await ann.http.put("aliases/prod", json={"target": one})

    assert "alias 'prod' points at it" in refusal(await ann.http.delete(url_of(one)), 400)
    assert "prod" in refusal(await ann.http.put(f"{url_of(one)}/ttl", json={"ttl_seconds": 7200}), 400)
    await ann.http.put(f"policies/run:{run_id}", json={"keep_last": 1})
    await ann.http.post("sweep", json={"dry_run": False})
    left = await context.catalog.checkpoints.list_by_run(run_id, now=context.now())
    assert {row.path for row in left} == {one, three}
    assert two not in {row.path for row in left}
    row = await context.catalog.runs.get(run_id)
    assert row.owner == "ann"

    await ann.http.delete("aliases/prod")
    assert (await ann.http.delete(url_of(one))).status_code == 204
    assert "is not" in refusal(await ann.http.post("aliases/prod/undo", json={}), 404)


async def test_what_cannot_be_served_is_refused_by_name(context: Context, ann: User) -> None:
    run_id = await ann.run()
    [model, *_] = context.models
    path = await ann.save(run_id, "one")
    await ann.http.put(f"{url_of(path)}/ttl", json={"ttl_seconds": 7200})

    assert "is a base model" in refusal(await ann.http.put(f"aliases/{model}", json={"target": path}), 400)
    assert "not served here" in refusal(await ann.http.put("aliases/prod", json={"target": "no-model"}), 400)
    assert "cannot name an alias" in refusal(await ann.http.put("aliases/-x", json={"target": model}), 400)
    assert "expires at" in refusal(await ann.http.put("aliases/prod", json={"target": path}), 400)
    missing = f"tinker://{run_id}/weights/missing"
    refusal(await ann.http.put("aliases/prod", json={"target": missing}), 404)
    assert (await ann.http.put("aliases/prod", json={"target": model})).json()["target"] == model
