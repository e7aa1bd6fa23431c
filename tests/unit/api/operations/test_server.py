from __future__ import annotations

import pytest

import chockstone
from chockstone.api.context import Context
from support.api.users import KEYS, MODEL, User, refusal
from support.served import Served


async def test_an_admin_sees_the_whole_server(served: Served, context: Context, ann: User, root: User) -> None:
    run_id = await ann.run()
    await ann.save(run_id, "a")

    answer = await root.http.get("server")
    shown = answer.json()

    assert shown["version"] == chockstone.__version__
    assert shown["uptime_seconds"] > 0 and shown["started_at"].endswith("Z")
    assert (shown["is_admin"], shown["is_open"], shown["is_stopping"]) == (True, False, False)
    assert shown["models"] == [
        {"name": MODEL, "architecture": "Tiny", "max_context_length": 128, "is_loaded": True},
    ]
    worker = shown["worker"]
    assert (worker["state"], worker["generation"], worker["restarts"], worker["device"]) == ("ready", 1, 0, "none")
    assert worker["memory_bytes"] > 0
    assert shown["disk"]["free_bytes"] + shown["disk"]["used_bytes"] == shown["disk"]["total_bytes"]
    assert "full_in_days" not in shown["disk"], "not known yet"
    assert shown["journal"]["mode"] == "on" and shown["journal"]["size_bytes"] > 0
    assert shown["runs"] == {"ready": 1}
    assert shown["queue"] == {"operations": 0, "samples": 0}
    assert shown["problems"] == []
    assert shown["settings"]["admins"] == ["root"]
    assert not any(key in answer.text for key in KEYS.values())


async def test_a_user_sees_the_server_and_their_own_load(served: Served, ann: User, bob: User, root: User) -> None:
    run_id = await ann.run()
    served.backend.hold("forward_backward")
    live = served.engine.runs.get(run_id)
    assert live is not None
    await served.engine.training.forward_backward(live, 1, b"7")
    live.hold("a test holds it")

    own, others, everyones = [(await user.http.get("server")).json() for user in (ann, bob, root)]
    served.backend.let_go("forward_backward")

    assert own["queue"]["operations"] == 1 and own["queue"]["oldest_wait_seconds"] >= 0
    assert own["runs"] == {"held": 1} and [each["kind"] for each in own["problems"]] == ["run_held"]
    assert (others["queue"], others["runs"], others["problems"]) == ({"operations": 0, "samples": 0}, {}, [])
    assert others["worker"]["state"] == "ready" and "settings" not in others
    assert everyones["queue"]["operations"] == 1
    assert (await root.http.get("server", params={"owner": "bob"})).json()["runs"] == {}
    refusal(await bob.http.get("server", params={"owner": "ann"}), 403)


async def test_trained_tokens_show_as_a_rate(served: Served, ann: User, bob: User) -> None:
    live = served.engine.runs.get(await ann.run())
    assert live is not None
    promise = served.engine.futures.get(await served.engine.training.forward_backward(live, 1, b"600"))
    assert promise is not None and await promise.wait(30) is not None

    own, others = [(await user.http.get("server")).json()["tokens_per_second"] for user in (ann, bob)]

    assert own["trained"] >= 10 and own["sampled"] == 0
    assert others == {"trained": 0, "sampled": 0}


async def test_a_worker_that_is_gone_shows(served: Served, ann: User) -> None:
    run_id = await ann.run()
    served.backend.is_ready = False
    served.backend.trouble = "the worker died 3 times before it was ready"

    shown = (await ann.http.get("server")).json()
    served.backend.is_ready = True

    assert (shown["worker"]["state"], shown["worker"]["trouble"]) == ("failing", served.backend.trouble)
    assert shown["models"][0]["is_loaded"] is False
    assert shown["runs"] == {"waiting": 1}
    assert [each["kind"] for each in shown["problems"]] == ["worker_not_ready"]
    assert run_id in [run.run_id for run in served.engine.runs]


@pytest.mark.parametrize("replicas", [2])
async def test_each_replica_shows_with_its_runs(served: Served, ann: User) -> None:
    for _ in range(3):
        await ann.run()
    served.backends[1].die("signal 9")
    served.backends[1].is_ready = False

    worker = (await ann.http.get("server")).json()["worker"]

    assert (worker["state"], worker["restarts"], worker["memory_bytes"]) == ("ready", 1, 1 << 20)
    shown = [(each["number"], each["state"], each["runs"], each["restarts"]) for each in worker["replicas"]]
    assert shown == [(0, "ready", 2, 0), (1, "starting", 1, 1)]
    assert worker["replicas"][1]["last_death"] == "signal 9"


async def test_a_single_worker_shows_no_replicas(served: Served, ann: User) -> None:
    assert (await ann.http.get("server")).json()["worker"]["replicas"] == []
