"""What a server says of runs, and how it deletes them."""

from __future__ import annotations

from chockstone.api.context import Context
from chockstone.catalog import RunProgress
from support.api.users import User, refusal


async def test_a_run_has_its_progress_and_its_parent_for_its_owner_alone(
    context: Context, ann: User, bob: User
) -> None:
    first = await ann.run()
    path = await ann.save(first, "a")
    await ann.http.post(f"training_runs/{first}/checkpoints/weights/a/publish")
    second = await ann.run()
    await ann.result("load_weights", {"model_id": second, "seq_id": 1, "path": path, "optimizer": True})
    await ann.result("optim_step", {"model_id": second, "seq_id": 2, "adam_params": {"learning_rate": 0.1}})

    listed = {run["training_run_id"]: run for run in (await ann.http.get("training_runs")).json()["training_runs"]}
    shared = (await bob.http.get(f"training_runs/{first}", params={"access_scope": "accessible"})).json()

    assert (listed[second]["steps"], listed[second]["parent"]) == (1, path)
    assert listed[second]["created_at"] >= listed[first]["created_at"]
    assert "parent" not in listed[first]
    assert not {"steps", "created_at", "last_loss", "parent", "state"} & set(shared)


async def test_a_run_that_is_not_live_has_the_progress_of_the_catalog(context: Context, ann: User) -> None:
    run_id = await ann.run()
    await ann.result("unload_model", {"model_id": run_id})
    await context.catalog.runs.record_progress({run_id: RunProgress(7, 0.25)})

    run = (await ann.http.get(f"training_runs/{run_id}")).json()

    assert (run["steps"], run["last_loss"], run["state"]) == (7, 0.25, "unloaded")


async def test_only_the_owner_removes_a_run(ann: User, bob: User) -> None:
    run_id = await ann.run()
    await ann.save(run_id, "a")

    refused = await bob.http.delete(f"training_runs/{run_id}")
    removed = await ann.http.delete(f"training_runs/{run_id}")

    assert "not yours or not there" in refusal(refused, 404)
    assert removed.json() == {"training_run_id": run_id, "checkpoints": 1}
    refusal(await ann.http.get(f"training_runs/{run_id}"), 404)
    refusal(await ann.http.delete(f"training_runs/{run_id}"), 404)


async def test_a_server_that_shuts_down_removes_no_run(context: Context, ann: User) -> None:
    run_id = await ann.run()
    context.engine.shutdown.begin()

    refused = await ann.http.delete(f"training_runs/{run_id}")

    assert "shutting down" in refusal(refused, 503)
    assert (await ann.http.get(f"training_runs/{run_id}")).status_code == 200
