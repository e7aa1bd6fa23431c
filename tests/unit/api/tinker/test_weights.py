from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from chockstone.api.context import Context
from chockstone.wire.paths import TinkerPath
from support.api.users import KEYS, User, refusal, url_of
from support.served import Served
from unit.api.tinker.test_checkpoints import archive_of, damaged


async def test_latest_is_the_newest_that_verifies_and_says_what_it_passed_over(
    store: Path, context: Context, ann: User
) -> None:
    run_id = await ann.run()
    paths = [await ann.save(run_id, f"s{number}") for number in range(3)]
    await ann.save(run_id, "other", kind="sampler_weights")
    archive = store / f"{await archive_of(context, paths[2])}.tar"
    archive.write_bytes(damaged(archive.read_bytes()))
    latest = f"tinker://{run_id}/weights/latest"
    session_id = await ann.session()

    info = (await ann.http.post("weights_info", json={"tinker_path": latest})).json()
    loaded = await ann.result(
        "load_weights", {"session_id": session_id, "model_seq_id": 0, "path": latest, "optimizer": True}
    )
    into = await ann.run()
    again = await ann.result("load_weights", {"model_id": into, "seq_id": 90, "path": latest, "optimizer": False})
    sampler = (
        await ann.http.post(
            "create_sampling_session",
            json={"session_id": session_id, "sampling_session_seq_id": 0, "model_path": latest},
        )
    ).json()

    assert (info["path"], [each["path"] for each in info["skipped"]]) == (paths[1], [paths[2]])
    assert info["skipped"][0]["reason"] == (await ann.entry(paths[2]))["damage"]
    assert (sampler["path"], len(sampler["skipped"])) == (paths[1], 1)
    shown = (await ann.http.get(f"samplers/{sampler['sampling_session_id']}")).json()
    assert shown["model_path"] == paths[1]
    assert loaded["model_id"] == f"{session_id}:train:0"
    for told in (loaded, again):
        assert told["path"] == paths[1]
        assert [each["path"] for each in told["skipped"]] == [paths[2]]


async def test_latest_of_nothing_is_not_found(store: Path, context: Context, ann: User, bob: User) -> None:
    run_id = await ann.run()
    latest = {"tinker_path": f"tinker://{run_id}/weights/latest"}
    never = await ann.http.post("weights_info", json=latest)
    assert refusal(never, 404) and "code" not in never.json()
    path = await ann.save(run_id, "only")
    archive = store / f"{await archive_of(context, path)}.tar"
    archive.write_bytes(damaged(archive.read_bytes()))

    lost = await ann.http.post("weights_info", json=latest)
    assert "damaged" in refusal(lost, 404)
    assert lost.json()["code"] == "damaged", "a run that had something does not begin anew"
    theirs = await bob.http.post("weights_info", json=latest)
    assert "damaged" not in refusal(theirs, 404) and "code" not in theirs.json()


async def test_latest_of_another_s_run_is_the_newest_public_one(ann: User, bob: User) -> None:
    run_id = await ann.run()
    shared = await ann.save(run_id, "shared")
    await ann.save(run_id, "private")
    await ann.http.post(url_of(shared, "publish"))

    info = (await bob.http.post("weights_info", json={"tinker_path": f"tinker://{run_id}/weights/latest"})).json()

    assert info["path"] == shared
    assert "skipped" not in info


@pytest.mark.parametrize("kind", ["weights", "sampler_weights", "external_weights"])
async def test_nothing_is_saved_as_latest(ann: User, kind: str) -> None:
    run_id = await ann.run()
    routes = {"weights": "save_weights", "sampler_weights": "save_weights_for_sampler"}

    for name in ("latest", "..", "é", "x" * 256, ""):
        body = {"model_id": run_id, "seq_id": 50, "path": name}
        answer = await ann.http.post(routes.get(kind, "save_weights_external"), json=body)
        assert "1 to 255 characters" in refusal(answer, 400)
    assert await ann.listed(run_id) == []


async def test_an_export_names_its_size_and_passes_its_recipients_on(served: Served, ann: User) -> None:
    run_id = await ann.run()
    body = {"model_id": run_id, "seq_id": 50, "path": "adapter", "ttl_seconds": 3600}

    saved = await ann.result("save_weights_external", body)
    again = await ann.result("save_weights_external", body)

    assert again == saved
    assert saved["type"] == "save_weights_external"
    assert saved["path"] == f"tinker://{run_id}/external_weights/adapter"
    entry = await ann.entry(saved["path"])
    assert entry["size_bytes"] == saved["size_bytes"]
    assert "expires_at" in entry
    sealed = body | {"path": "sealed", "seq_id": 51, "age_encryption_recipients": ["age1xyz"]}
    await ann.outcome("save_weights_external", sealed)
    assert [values["recipients"] for values in served.backend.values_of("save")] == [[], ["age1xyz"]]


async def test_a_copy_is_one_s_own_and_made_once(ann: User, bob: User) -> None:
    run_id = await ann.run()
    path = await ann.save(run_id, "origin", user_metadata={"note": "x"}, ttl_seconds=3600)
    await ann.http.post(url_of(path, "publish"))
    body = {"source_path": path, "destination_project_id": "p"}
    key = {"X-Idempotency-Key": "11111111-1111-4111-8111-111111111111"}

    first, again = [(await bob.http.post("copy_weights", json=body, headers=key)).json() for _ in range(2)]
    other = (await bob.http.post("copy_weights", json=body | {"ttl_seconds": 7200})).json()

    assert again == first
    copied = TinkerPath.parse(first["tinker_path"])
    assert (copied.kind, copied.name) == ("weights", "origin")
    assert copied.run_id not in (run_id, TinkerPath.parse(other["tinker_path"]).run_id)
    entry = await bob.entry(first["tinker_path"])
    assert entry["user_metadata"] == {"note": "x"}
    assert entry["public"] is False
    assert "expires_at" not in entry  # the source's lifetime is its own
    left = datetime.fromisoformat((await bob.entry(other["tinker_path"]))["expires_at"]) - datetime.now(UTC)
    assert timedelta(minutes=118) < left <= timedelta(hours=2)
    assert (await ann.http.delete(url_of(path))).status_code == 204
    assert (await bob.http.post(url_of(first["tinker_path"], "verify"))).json()["state"] == "ready"
    refusal(await ann.http.get(url_of(first["tinker_path"])), 404)
    runs = (await bob.http.get("training_runs", params={"project_id": "p"})).json()["training_runs"]
    assert copied.run_id in {run["training_run_id"] for run in runs}


async def test_a_private_checkpoint_is_copied_and_loaded_with_its_owner_s_token(ann: User, bob: User) -> None:
    path = await ann.save(await ann.run(), "private")
    body = {"source_path": path, "destination_project_id": "p"}
    token = (await ann.http.post("auth/token", json={})).json()["jwt"]

    refusal(await bob.http.post("copy_weights", json=body), 404)
    refusal(await bob.http.post("copy_weights", json=body, headers={"X-Tinker-Weights-Access-Token": "tml-x"}), 403)
    for headers, more in (
        ({"X-Tinker-Weights-Access-Token": KEYS["ann"]}, {}),
        ({"X-Tinker-Weights-Access-Token": token}, {}),
        ({}, {"weights_access_token": token}),
    ):
        copied = await bob.http.post("copy_weights", json=body | more, headers=headers)
        assert copied.status_code == 200, copied.text
        assert (await bob.entry(copied.json()["tinker_path"]))["size_bytes"] > 0
    load = {"model_id": await bob.run(), "seq_id": 50, "path": path, "optimizer": True}
    refusal(await bob.http.post("load_weights", json=load), 404)
    refusal(await bob.http.post("load_weights", json=load | {"weights_access_token": "tml-x"}), 403)
    assert (await bob.result("load_weights", load | {"weights_access_token": token}))["path"] == path


async def test_a_copy_into_a_session_goes_to_its_project(ann: User) -> None:
    path = await ann.save(await ann.run(), "origin", kind="sampler_weights")
    body = {"source_path": path, "session_id": await ann.session(project_id="q"), "model_seq_id": 3}

    first, again = [(await ann.http.post("copy_weights", json=body)).json()["tinker_path"] for _ in range(2)]

    assert first == again
    runs = (await ann.http.get("training_runs", params={"project_id": "q"})).json()["training_runs"]
    assert [run["training_run_id"] for run in runs] == [TinkerPath.parse(first).run_id]
    refusal(await ann.http.post("copy_weights", json=body | {"ttl_seconds": 1}), 400)
    refusal(await ann.http.post("copy_weights", json={"source_path": path, "session_id": "s"}), 400)


async def test_a_public_checkpoint_that_was_replaced_by_a_private_one_is_not_loaded(
    served: Served, ann: User, bob: User
) -> None:
    run_id, into = await ann.run(), await bob.run()
    path = await ann.save(run_id, "shared")
    assert (await ann.http.post(url_of(path, "publish"))).status_code == 204
    served.backend.hold("optim_step")
    await bob.http.post("optim_step", json={"model_id": into, "seq_id": 50, "adam_params": {"learning_rate": 0.1}})
    load = {"model_id": into, "seq_id": 51, "path": path, "optimizer": False}
    waiting = (await bob.http.post("load_weights", json=load)).json()["request_id"]
    served.backend.runs[run_id].weight = 42
    await ann.save(run_id, "shared", overwrite=True)
    served.backend.let_go("optim_step")

    told = (await bob.http.post("retrieve_future", json={"request_id": waiting})).json()

    assert told["category"] == "user" and "replaced" in told["error"]
    assert served.backend.runs[into].weight == 0
    assert "load" not in served.backend.words()


async def test_no_recipients_is_a_mistake_and_not_plain_text(store: Path, ann: User) -> None:
    run_id = await ann.run()
    body = {"model_id": run_id, "seq_id": 50, "path": "secret"}

    none = refusal(await ann.http.post("save_weights_external", json=body | {"age_encryption_recipients": []}), 400)
    many = refusal(
        await ann.http.post("save_weights_external", json=body | {"age_encryption_recipients": ["age1x"] * 11}), 400
    )

    assert "the list is empty: name a recipient, or leave the field out" in none
    assert many == "age_encryption_recipients: 11 recipients are too many; there may be up to 10."
    assert await ann.listed(run_id) == []
