from __future__ import annotations

from chockstone.api.context import Context
from support.api.users import User, refusal


async def test_recoveries_of_all_runs_are_listed_newest_first_in_pages(
    context: Context, ann: User, bob: User, root: User
) -> None:
    for number in range(3):
        await context.catalog.recoveries.add(
            run_id="s:train:0", owner="ann", at=context.now(), reason=f"signal {number}", replayed=4, matched=4
        )
    await context.catalog.recoveries.add(run_id="t:train:0", owner="bob", at=context.now(), reason="parked")

    first = (await root.http.get("recoveries", params={"limit": 3})).json()
    second = (await root.http.get("recoveries", params={"limit": 3, "cursor": first["cursor"]})).json()
    own = (await ann.http.get("recoveries")).json()
    of_run = (await root.http.get("recoveries", params={"run": "t:train:0"})).json()

    assert [each["reason"] for each in first["recoveries"]] == ["parked", "signal 2", "signal 1"]
    assert [each["reason"] for each in second["recoveries"]] == ["signal 0"] and "cursor" not in second
    assert {(each["run_id"], each["owner"], each["matched"]) for each in own["recoveries"]} == {("s:train:0", "ann", 4)}
    assert [each["owner"] for each in of_run["recoveries"]] == ["bob"]
    assert (await ann.http.get("recoveries", params={"run": "t:train:0"})).json()["recoveries"] == []
    assert len((await root.http.get("recoveries", params={"owner": "ann"})).json()["recoveries"]) == 3
    refusal(await ann.http.get("recoveries", params={"owner": "bob"}), 403)
    refusal(await ann.http.get("recoveries", params={"cursor": "x"}), 422)
