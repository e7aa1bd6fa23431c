"""What a server tells of runs that it brought back."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from chockstone.api.context import Context
from support.api.users import User, refusal
from support.served import Served

AT = datetime(2030, 1, 1, 12, tzinfo=UTC)


async def add(context: Context, run_id: str, **facts: Any) -> None:
    await context.catalog.recoveries.add(
        **{"run_id": run_id, "owner": "ann", "at": AT, "reason": "the server was restarted", **facts}
    )


async def test_receipts_are_told_newest_first_to_the_owner_and_to_admins(
    context: Context, ann: User, users: dict[str, User]
) -> None:
    run_id = await ann.run()
    skipped = [{"archive": "a/recovery/9.x", "reason": "a digest differs"}]
    await add(context, run_id, replayed=3, matched=3, seconds=0.5)
    await add(context, run_id, archive="a/recovery/7.x", skipped=skipped, redone=1, mismatched=2, notes=["n"])

    told = (await ann.http.get(f"training_runs/{run_id}/recoveries")).json()

    assert told["training_run_id"] == run_id
    assert told["recoveries"] == [
        {
            "at": "2030-01-01T12:00:00Z",
            "reason": "the server was restarted",
            "archive": "a/recovery/7.x",
            "skipped": skipped,
            "replayed": 0,
            "redone": 1,
            "matched": 0,
            "mismatched": 2,
            "seconds": 0.0,
            "notes": ["n"],
            "lost": 0,
            "differing": [],
            "uncompared": [],
        },
        {
            "at": "2030-01-01T12:00:00Z",
            "reason": "the server was restarted",
            "skipped": [],
            "replayed": 3,
            "redone": 0,
            "matched": 3,
            "mismatched": 0,
            "seconds": 0.5,
            "notes": [],
            "lost": 0,
            "differing": [],
            "uncompared": [],
        },
    ]
    assert (await users["root"].http.get(f"training_runs/{run_id}/recoveries")).json() == told
    one = (await ann.http.get(f"training_runs/{run_id}/recoveries", params={"limit": 1})).json()
    assert one["recoveries"] == told["recoveries"][:1]


async def test_nobody_else_is_told(context: Context, ann: User, bob: User) -> None:
    run_id = await ann.run()
    await add(context, run_id)

    assert "not yours or not there" in refusal(await bob.http.get(f"training_runs/{run_id}/recoveries"), 404)
    assert "not yours or not there" in refusal(await ann.http.get("training_runs/nope/recoveries"), 404)


async def test_a_number_of_receipts_that_makes_no_sense_is_refused(ann: User) -> None:
    run_id = await ann.run()

    for limit in (0, 101):
        refusal(await ann.http.get(f"training_runs/{run_id}/recoveries", params={"limit": limit}), 422)


async def test_the_state_of_a_run_is_its_owners_to_know(served: Served, context: Context, ann: User, bob: User) -> None:
    run_id = await ann.run()
    path = await ann.save(run_id, "final")
    await ann.http.post(f"training_runs/{run_id}/checkpoints/weights/final/publish")
    await context.catalog.runs.set_state(run_id, "parked")

    own = (await ann.http.get(f"training_runs/{run_id}")).json()
    listed = (await ann.http.get("training_runs")).json()["training_runs"]
    others = (await bob.http.get(f"training_runs/{run_id}", params={"access_scope": "accessible"})).json()

    assert (own["state"], [each["state"] for each in listed]) == ("parked", ["parked"])
    assert others["last_checkpoint"]["tinker_path"] == path
    assert "state" not in others
