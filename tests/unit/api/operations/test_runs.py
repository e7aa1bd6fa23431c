from __future__ import annotations

import asyncio
import base64
from typing import Any

import pytest

from chockstone.api.context import Context
from chockstone.catalog import RunProgress
from support.api.users import User, refusal
from support.served import Served


async def listed(user: User, **query: Any) -> list[str]:
    answer = await user.http.get("runs", params=query)
    assert answer.status_code == 200, answer.text
    return [run["run_id"] for run in answer.json()["runs"]]


async def test_owners_see_their_own_and_admins_all(ann: User, bob: User, root: User) -> None:
    mine, theirs = await ann.run(), await bob.run()

    assert await listed(ann) == [mine]
    assert await listed(root) == [theirs, mine]
    assert await listed(root, owner="ann") == [mine]
    assert await listed(ann, owner="ann") == [mine]
    refusal(await ann.http.get("runs", params={"owner": "bob"}), 403)
    for path in (f"runs/{theirs}", f"runs/{theirs}/lineage", "runs/none", "runs/none/lineage"):
        refusal(await ann.http.get(path), 404)
    assert (await root.http.get(f"runs/{theirs}")).json()["owner"] == "bob"


async def test_a_row_says_how_the_run_is(served: Served, context: Context, ann: User) -> None:
    run_id = await ann.run()
    path = await ann.save(run_id, "a")
    live = served.engine.runs.get(run_id)
    assert live is not None
    passing = served.engine.futures.get(await served.engine.training.forward_backward(live, 90, b"8"))
    assert passing is not None and await passing.wait(30) is not None
    served.backend.hold("forward_backward")
    await served.engine.training.forward_backward(live, 91, b"8")
    await served.engine.training.optim_step(live, 92, {})
    while not live.under_way:
        await asyncio.sleep(0)

    [row] = (await ann.http.get("runs")).json()["runs"]
    shown = (await ann.http.get(f"runs/{run_id}")).json()
    served.backend.let_go("forward_backward")
    await live.lane.drained()
    after = (await ann.http.get(f"runs/{run_id}")).json()

    assert (row["state"], row["owner"], row["base_model"], row["rank"]) == ("ready", "ann", "tiny", 4)
    assert (row["loss"], row["tokens"], row["queue_depth"], row["checkpoints"]) == (2.0, 8, 2, 1)
    assert row["oldest_wait_seconds"] >= 0 and row["journal_bytes"] > 0 and row["checkpoint_bytes"] > 0
    assert {name: shown[name] for name in ("run_id", "queue_depth", "state")} == {
        "run_id": run_id,
        "queue_depth": 2,
        "state": "ready",
    }
    assert [(each["type"], each["seq_id"], each["state"]) for each in shown["operations"]] == [
        ("forward_backward", 91, "running"),
        ("optim_step", 92, "queued"),
    ]
    assert shown["spec"]["rank"] == 4 and shown["backlog"]["operations"] >= 1
    assert (after["operations"], after["step"], after["queue_depth"]) == ([], 1, 0)
    assert path.endswith("/a")


async def test_a_parked_run_has_its_journal_and_its_numbers(served: Served, ann: User) -> None:
    run_id = await ann.run()
    live = served.engine.runs.get(run_id)
    assert live is not None
    passing = served.engine.futures.get(await served.engine.training.forward_backward(live, 1, b"8"))
    assert passing is not None and await passing.wait(30) is not None
    assert await served.engine._core.registry.park(live)

    shown = (await ann.http.get(f"runs/{run_id}")).json()

    assert (shown["state"], shown["tokens"], shown["loss"]) == ("parked", 8, 2.0)
    assert shown["journal_bytes"] > 0 and shown["operations"] == [] and "backlog" not in shown
    assert await listed(ann, state="parked") == [run_id]
    assert await listed(ann, state=["ready", "waiting"]) == []
    assert served.engine.runs.get(run_id) is None, "looking does not wake it"


async def test_runs_are_filtered_by_live_state_and_words(served: Served, ann: User) -> None:
    first, second = await ann.run(), await ann.run()
    live = served.engine.runs.get(second)
    assert live is not None
    live.hold("a test holds it")

    assert await listed(ann, state="ready") == [first]
    assert await listed(ann, state="held") == [second]
    assert await listed(ann, state=["ready", "held"]) == [second, first]
    assert await listed(ann, query=second[-8:]) == [second]
    refusal(await ann.http.get("runs", params={"state": "asleep"}), 422)
    refusal(await ann.http.get("runs", params={"sort": "colour"}), 422)
    refusal(await ann.http.get("runs", params={"limit": 0}), 422)


@pytest.mark.parametrize("sort", ["-created", "last_request", "-step", "loss", "-tokens", "owner", "-bytes"])
async def test_pages_follow_a_cursor(context: Context, ann: User, sort: str) -> None:
    session = await ann.session()
    runs = [await ann.run(session) for _ in range(5)]
    await context.catalog.runs.record_progress({runs[0]: RunProgress(3, 0.5), runs[1]: RunProgress(3, float("inf"))})
    found: list[str] = []
    cursor: str | None = ""
    while cursor is not None:
        page = (
            await ann.http.get("runs", params={"sort": sort, "limit": 2} | ({"cursor": cursor} if cursor else {}))
        ).json()
        assert page["total_count"] == 5
        found += [run["run_id"] for run in page["runs"]]
        cursor = page.get("cursor")

    assert sorted(found) == sorted(runs)
    assert found == await listed(ann, sort=sort)


@pytest.mark.parametrize(
    "cursor", ["x", "", "eyJ9", *(base64.urlsafe_b64encode(each).decode() for each in (b"5", b'["-created",5,"r"]'))]
)
async def test_a_cursor_that_is_none_is_refused(ann: User, cursor: str) -> None:
    assert "begin at the first page" in refusal(await ann.http.get("runs", params={"cursor": cursor}), 400)


async def test_lineage_follows_checkpoints_both_ways(ann: User, bob: User, root: User) -> None:
    session = await ann.session()
    runs = [await ann.run(session) for _ in range(3)]
    paths = []
    for parent, child in ((0, 1), (1, 2)):
        paths.append(await ann.save(runs[parent], "a"))
        await ann.result("load_weights", {"model_id": runs[child], "seq_id": 50, "path": paths[-1], "optimizer": True})
    await ann.http.post(f"training_runs/{runs[0]}/checkpoints/weights/a/publish")
    stranger = await bob.run()
    await bob.result("load_weights", {"model_id": stranger, "seq_id": 50, "path": paths[0], "optimizer": True})

    lineage = {run_id: (await root.http.get(f"runs/{run_id}/lineage")).json() for run_id in runs}
    own = (await ann.http.get(f"runs/{runs[0]}/lineage")).json()
    others = (await bob.http.get(f"runs/{stranger}/lineage")).json()

    assert lineage[runs[2]]["loaded"] == paths[1]
    assert [(each["run_id"], each.get("loaded")) for each in lineage[runs[2]]["ancestors"]] == [
        (runs[1], paths[0]),
        (runs[0], None),
    ]
    assert others["ancestors"] == [{"run_id": runs[0], "depth": 1, "is_visible": False}]
    assert others["loaded"] == paths[0]
    assert (own["is_complete"], own["ancestors"]) == (True, [])
    assert [(each["run_id"], each["depth"]) for each in own["descendants"]] == [(runs[1], 1), (runs[2], 2)]
    assert {each["run_id"] for each in lineage[runs[0]]["descendants"]} == {runs[1], runs[2], stranger}
