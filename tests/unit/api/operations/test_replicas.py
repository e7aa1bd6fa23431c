from __future__ import annotations

import pytest

from chockstone.api.context import Context
from support.api.users import User, refusal
from support.engine.making import until
from support.served import Served


@pytest.mark.parametrize("replicas", [2])
async def test_an_admin_drains_and_adds_replicas_with_audit(
    served: Served, context: Context, ann: User, root: User
) -> None:
    for _ in range(2):
        await ann.run()

    drained = (await root.http.post("replicas/0/drain")).json()
    await until(lambda: served.backends[0].is_stopped)
    listed = (await ann.http.get("replicas")).json()
    added = (await root.http.post("replicas")).json()
    stays = (await root.http.post("replicas/1/undrain")).json()

    assert (drained["number"], drained["is_leaving"], drained["runs"]) == (0, True, 1)
    assert [(each["number"], each["runs"]) for each in listed["replicas"]] == [(1, 2)]
    assert listed["is_elastic"]
    assert (added["number"], added["state"], added["runs"]) == (0, "ready", 0)
    assert not stays["is_leaving"]
    shown = (await ann.http.get("server")).json()["worker"]["replicas"]
    assert [(each["number"], each["runs"]) for each in shown] == [(0, 0), (1, 2)]
    await context.engine.audit.flush()
    noted = [(row.event, row.details["replica"]) for row in await context.catalog.audit.list("root", prefix="replica_")]
    assert noted == [("replica_drained", 0), ("replica_added", 0), ("replica_undrained", 1)]


@pytest.mark.parametrize("replicas", [2])
async def test_only_admins_change_replicas(served: Served, ann: User, root: User) -> None:
    for path in ("replicas", "replicas/0/drain", "replicas/0/undrain"):
        assert "only admins" in refusal(await ann.http.post(path), 403)
    assert "there is no replica 7" in refusal(await root.http.post("replicas/7/drain"), 404)
    assert "there is no replica 7" in refusal(await root.http.post("replicas/7/undrain"), 404)
    refusal(await root.http.post("replicas/-1/drain"), 422)


async def test_a_single_worker_is_listed_and_stays(ann: User, root: User) -> None:
    listed = (await ann.http.get("replicas")).json()

    assert ([each["number"] for each in listed["replicas"]], listed["is_elastic"]) == ([0], False)
    assert "--replicas N" in refusal(await root.http.post("replicas"), 400)
    assert "--replicas N" in refusal(await root.http.post("replicas/0/drain"), 400)
