from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import cast

import pytest
from sqlalchemy import text

from chockstone.api.context import Context
from chockstone.api.users import Caller
from chockstone.catalog import CheckpointKind
from chockstone.checkpoints.errors import CheckpointMissing
from chockstone.wire.paths import TinkerPath
from support.api.users import User, refusal, url_of
from support.served import Served

KINDS = ("weights", "sampler_weights", "external_weights")


async def test_each_kind_is_listed_with_what_is_known_of_it(ann: User) -> None:
    run_id = await ann.run()
    await ann.save(run_id, "a", user_metadata={"loss": 0.5, "note": "x"}, ttl_seconds=7200)
    await ann.save(run_id, "a", kind="sampler_weights")
    await ann.save(run_id, "a", kind="external_weights")

    newest, _, oldest = (await ann.http.get(f"training_runs/{run_id}/checkpoints")).json()["checkpoints"]

    assert newest["checkpoint_type"] == "external"
    assert oldest["checkpoint_id"] == "weights/a"
    assert oldest["tinker_path"] == f"tinker://{run_id}/weights/a"
    assert oldest["user_metadata"] == {"loss": "0.5", "note": "x"}
    assert oldest["size_bytes"] > 0
    assert oldest["state"] == "ready"
    assert oldest["public"] is False
    left = datetime.fromisoformat(oldest["expires_at"]) - datetime.now(UTC)
    assert timedelta(minutes=118) < left <= timedelta(hours=2)
    assert await ann.entry(oldest["tinker_path"]) == oldest


async def test_the_list_of_a_user_has_pages(ann: User, bob: User) -> None:
    runs = [await ann.run(), await ann.run()]
    paths = [await ann.save(runs[number % 2], f"s{number}") for number in range(5)]
    await bob.save(await bob.run(), "theirs")

    first = (await ann.http.get("checkpoints", params={"limit": 2})).json()
    last = (await ann.http.get("checkpoints", params={"limit": 2, "offset": 4})).json()
    beyond = (await ann.http.get("checkpoints", params={"offset": 9})).json()

    assert [each["tinker_path"] for each in first["checkpoints"]] == [paths[4], paths[3]]
    assert first["cursor"] == {"offset": 0, "limit": 2, "total_count": 5}
    assert [each["tinker_path"] for each in last["checkpoints"]] == [paths[0]]
    assert (beyond["checkpoints"], beyond["cursor"]["total_count"]) == ([], 5)
    for query in ("limit=-1", "limit=1001", "limit=x", "offset=-1"):
        refusal(await ann.http.get(f"checkpoints?{query}"), 422)


async def archive_of(context: Context, path: str) -> str:
    run_id, kind, name = path.removeprefix("tinker://").split("/")
    row = await context.catalog.checkpoints.get(run_id, cast("CheckpointKind", kind), name, now=context.now())
    return row.archive


async def is_stored(context: Context, archive: str) -> bool:
    try:
        await context.engine.storage.stat(archive)
    except CheckpointMissing:
        return False
    return True


@pytest.mark.parametrize("kind", KINDS)
async def test_a_deleted_checkpoint_is_gone_and_its_run_lives_on(
    served: Served, context: Context, ann: User, kind: str
) -> None:
    run_id = await ann.run()
    path = await ann.save(run_id, "a", kind=kind)
    archive = await archive_of(context, path)
    assert await is_stored(context, archive)

    assert (await ann.http.delete(url_of(path))).status_code == 204

    assert not await is_stored(context, archive)
    assert await ann.listed(run_id) == []
    refusal(await ann.http.delete(url_of(path)), 404)
    refusal(await ann.http.post("weights_info", json={"tinker_path": path}), 404)
    assert run_id in served.backend.runs
    assert await ann.save(run_id, "a", kind=kind) == path


async def test_of_many_deletes_one_wins(ann: User) -> None:
    path = await ann.save(await ann.run(), "wanted")

    answers = await asyncio.gather(*(ann.http.delete(url_of(path)) for _ in range(32)))

    assert sorted(answer.status_code for answer in answers) == [204] + [404] * 31


async def test_a_bare_name_deletes_what_it_can_only_mean(ann: User) -> None:
    run_id = await ann.run()
    await ann.save(run_id, "only", kind="sampler_weights")
    for kind in ("weights", "sampler_weights"):
        await ann.save(run_id, "both", kind=kind)
    bare = f"training_runs/{run_id}/checkpoints"

    assert (await ann.http.delete(f"{bare}/only")).status_code == 204
    ambiguous = refusal(await ann.http.delete(f"{bare}/both"), 400)
    refusal(await ann.http.delete(f"{bare}/only"), 404)

    assert "weights/both and" in ambiguous
    assert "sampler_weights/both" in ambiguous
    assert sorted(await ann.listed(run_id)) == ["sampler_weights/both", "weights/both"]


async def test_what_is_only_being_written_cannot_be_deleted(served: Served, ann: User) -> None:
    run_id = await ann.run()
    served.backend.hold("disk")
    body = {"model_id": run_id, "seq_id": 1, "path": "slow"}
    request_id = (await ann.http.post("save_weights", json=body)).json()["request_id"]
    while not await served.app.state.context.catalog.checkpoints.is_pending(run_id, "weights", "slow"):
        await asyncio.sleep(0)

    answers = [
        await ann.http.delete(f"training_runs/{run_id}/checkpoints/weights/slow"),
        await ann.http.delete(f"training_runs/{run_id}/checkpoints/slow"),
        await ann.http.put(f"training_runs/{run_id}/checkpoints/weights/slow/ttl", json={"ttl_seconds": None}),
    ]
    served.backend.let_go("disk")
    saved = (await ann.http.post("retrieve_future", json={"request_id": request_id})).json()

    assert all("is being written; wait" in refusal(answer, 400) for answer in answers)
    assert (await ann.http.delete(url_of(saved["path"]))).status_code == 204


async def test_a_name_that_is_written_over_can_be_deleted_meanwhile(served: Served, ann: User) -> None:
    run_id = await ann.run()
    path = await ann.save(run_id, "again")
    served.backend.hold("disk")
    body = {"model_id": run_id, "seq_id": 77, "path": "again", "overwrite": True}
    request_id = (await ann.http.post("save_weights", json=body)).json()["request_id"]
    while not await served.app.state.context.catalog.checkpoints.is_pending(run_id, "weights", "again"):
        await asyncio.sleep(0)

    assert (await ann.http.delete(url_of(path))).status_code == 204
    assert await ann.listed(run_id) == []
    served.backend.let_go("disk")
    assert (await ann.http.post("retrieve_future", json={"request_id": request_id})).json()["path"] == path
    assert await ann.listed(run_id) == ["weights/again"]


async def test_publishing_opens_a_checkpoint_to_readers_alone(ann: User, bob: User) -> None:
    run_id = await ann.run()
    path = await ann.save(run_id, "shared")
    await ann.save(run_id, "private")
    for _ in range(2):  # again is fine
        assert (await ann.http.post(url_of(path, "publish"))).status_code == 204

    assert (await bob.http.post("weights_info", json={"tinker_path": path})).json()["base_model"] == "tiny"
    assert (await bob.http.get(url_of(path, "archive"))).status_code == 302
    assert await bob.listed(run_id) == ["weights/shared"]
    run = (await bob.http.get(f"training_runs/{run_id}", params={"access_scope": "accessible"})).json()
    assert run["last_checkpoint"]["tinker_path"] == path
    refusal(await bob.http.get(f"training_runs/{run_id}"), 404)
    for answer in (
        await bob.http.delete(url_of(path)),
        await bob.http.delete(f"training_runs/{run_id}/checkpoints/shared"),
        await bob.http.delete(url_of(path, "publish")),
        await bob.http.put(url_of(path, "ttl"), json={"ttl_seconds": 3600}),
        await bob.http.post(url_of(path, "verify")),
    ):
        refusal(answer, 404)

    for _ in range(2):
        assert (await ann.http.delete(url_of(path, "publish"))).status_code == 204
    refusal(await bob.http.post("weights_info", json={"tinker_path": path}), 404)
    refusal(await bob.http.get(f"training_runs/{run_id}/checkpoints"), 404)


async def test_a_lifetime_is_set_counted_from_now_and_taken_away(ann: User) -> None:
    path = await ann.save(await ann.run(), "ttl", ttl_seconds=3600)

    assert (await ann.http.put(url_of(path, "ttl"), json={"ttl_seconds": 7200})).status_code == 204
    left = datetime.fromisoformat((await ann.entry(path))["expires_at"]) - datetime.now(UTC)
    assert timedelta(minutes=118) < left <= timedelta(hours=2)
    assert (await ann.http.put(url_of(path, "ttl"), json={"ttl_seconds": None})).status_code == 204
    assert "expires_at" not in await ann.entry(path)

    for ttl_seconds in (0, -1, 3599, 10**9, 10**40):
        answer = await ann.http.put(url_of(path, "ttl"), json={"ttl_seconds": ttl_seconds})
        assert "between an hour (3600) and ten years" in refusal(answer, 400)
    for body in ({}, {"ttl_seconds": "soon"}, {"ttl_seconds": 3600.5}, {"ttl_seconds": True}):
        refusal(await ann.http.put(url_of(path, "ttl"), json=body), 422)
    assert "expires_at" not in await ann.entry(path)


async def test_what_has_expired_is_gone_and_says_so(context: Context, ann: User) -> None:
    run_id = await ann.run()
    path = await ann.save(run_id, "short", ttl_seconds=3600)
    hour_ago = context.now() - timedelta(hours=1)
    await context.catalog.checkpoints.set_expiry(run_id, "weights", "short", hour_ago, now=context.now())

    assert await ann.listed(run_id) == []
    assert (await ann.http.get("checkpoints")).json()["cursor"]["total_count"] == 0
    for answer in (
        await ann.http.get(url_of(path)),
        await ann.http.delete(url_of(path)),
        await ann.http.put(url_of(path, "ttl"), json={"ttl_seconds": 3600}),
        await ann.http.post("weights_info", json={"tinker_path": path}),
    ):
        assert "expired at" in refusal(answer, 404)
        assert answer.json()["code"] == "expired"


async def test_verifying_reads_all_of_it_and_has_damage_be_known(store: Path, context: Context, ann: User) -> None:
    run_id = await ann.run()
    path = await ann.save(run_id, "hurt", user_metadata={"note": "x"})
    archive = store / f"{await archive_of(context, path)}.tar"
    assert (await ann.http.post(url_of(path, "verify"))).json() == {"state": "ready"}
    whole = archive.read_bytes()

    archive.write_bytes(damaged(whole))
    found = (await ann.http.post(url_of(path, "verify"))).json()

    assert found["state"] == "damaged"
    shown = await ann.entry(path)
    assert (shown["state"], shown["damage"]) == ("damaged", found["damage"])
    assert shown["user_metadata"] == {"note": "x", "chockstone.damage": found["damage"]}
    for answer in (
        await ann.http.post("weights_info", json={"tinker_path": path}),
        await ann.http.get(url_of(path, "archive")),
        await ann.http.post("copy_weights", json={"source_path": path}),
    ):
        assert "is damaged" in refusal(answer, 400)
    archive.write_bytes(whole)
    assert (await ann.http.post(url_of(path, "verify"))).json() == {"state": "ready"}
    archive.unlink()
    lost = (await ann.http.post(url_of(path, "verify"))).json()
    assert (lost["state"], lost["damage"]) == ("damaged", "its archive is not in the store")
    assert await ann.listed(run_id) == ["weights/hurt"]


def damaged(archive: bytes) -> bytes:
    """With one byte of its tensors turned over."""
    middle = len(archive) // 2
    return archive[:middle] + bytes([archive[middle] ^ 0xFF]) + archive[middle + 1 :]


@pytest.mark.parametrize("kind", KINDS)
async def test_an_archive_is_somewhere_else_for_an_hour(
    served: Served, store: Path, context: Context, ann: User, kind: str
) -> None:
    path = await ann.save(await ann.run(), "whole", kind=kind)

    answer = await ann.http.get(url_of(path, "archive"))

    assert answer.status_code == 302
    location = answer.headers["location"]
    assert location.startswith("http://localhost/api/v1/downloads/")
    left = parsedate_to_datetime(answer.headers["expires"]) - datetime.now(UTC)
    assert timedelta(minutes=58) < left <= timedelta(hours=1)
    assert answer.json()["url"] == location
    stored = (store / f"{await archive_of(context, path)}.tar").read_bytes()
    assert (await served.http.get(location, headers={"X-API-Key": ""})).content == stored


async def test_a_url_reaches_no_other_checkpoint_of_a_catalog_that_counts_anew(
    store: Path, context: Context, ann: User, bob: User
) -> None:
    path, other = [await user.save(await user.run(), "same") for user in (ann, bob)]
    first = await context.readable(TinkerPath.parse(path), Caller("ann"))
    second = await context.readable(TinkerPath.parse(other), Caller("bob"))
    url = (await ann.http.get(url_of(path, "archive"))).headers["location"]
    assert (await ann.http.get(url)).status_code == 200
    await context.catalog._database.write(
        text(f"DELETE FROM checkpoints WHERE save_id = {first.save_id}"),
        text(f"UPDATE checkpoints SET save_id = {first.save_id} WHERE save_id = {second.save_id}"),
    )

    assert "deleted" in refusal(await ann.http.get(url), 404)


async def test_the_files_of_an_export_have_urls_of_their_own(served: Served, ann: User) -> None:
    run_id = await ann.run()
    path = await ann.save(run_id, "adapter", kind="external_weights")

    answer = (await ann.http.get(url_of(path, "external_weights_urls"))).json()

    assert answer["urls"]
    assert datetime.fromisoformat(answer["expires"]) > datetime.now(UTC) + timedelta(minutes=58)
    for url in answer["urls"].values():
        fetched = await served.http.get(url, headers={"X-API-Key": ""})
        assert fetched.status_code == 200
        assert int(fetched.headers["content-length"]) == len(fetched.content)
    other = await ann.save(run_id, "state")
    assert "is of kind weights" in refusal(await ann.http.get(url_of(other, "external_weights_urls")), 400)


async def test_latest_is_the_name_of_none(ann: User) -> None:
    run_id = await ann.run()
    path = await ann.save(run_id, "newest")
    latest = f"tinker://{run_id}/weights/latest"

    for answer in (
        await ann.http.delete(url_of(latest)),
        await ann.http.delete(f"training_runs/{run_id}/checkpoints/latest"),
        await ann.http.post(url_of(latest, "publish")),
        await ann.http.put(url_of(latest, "ttl"), json={"ttl_seconds": 3600}),
        await ann.http.get(url_of(latest)),
    ):
        assert "'latest' cannot name a checkpoint" in refusal(answer, 400)
    assert await ann.listed(run_id) == ["weights/newest"]
    archives = [(await ann.http.get(url_of(each, "archive"))).headers["location"] for each in (latest, path)]
    assert archives[0].rpartition("/")[2] == archives[1].rpartition("/")[2] == "newest.tar"


HOSTILE_NAMES = [
    "%2e%2e", "%2e%2e%2f%2e%2e%2fetc", "..%2f..", "%c3%a9", "%ff", "%00", "a%20b", "a%0d%0ab",
    "x" * 256, "x" * 5000, "a%2fb", "%E2%80%AE", "a;b", "a%3fb", "%25", "~", "a\\b", "%F0%9F%92%A5", "latest%00",
]  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE_NAMES, ids=lambda name: name[:20])
async def test_names_outside_the_rule_are_refused_with_it(ann: User, name: str) -> None:
    run_id = await ann.run()
    await ann.save(run_id, "a")
    base = f"/api/v1/training_runs/{run_id}/checkpoints"

    for method, path in (
        ("DELETE", f"{base}/weights/{name}"),
        ("DELETE", f"{base}/{name}"),
        ("GET", f"{base}/weights/{name}"),
        ("GET", f"{base}/weights/{name}/archive"),
        ("GET", f"{base}/external_weights/{name}/external_weights_urls"),
        ("POST", f"{base}/weights/{name}/publish"),
        ("DELETE", f"{base}/weights/{name}/publish"),
        ("POST", f"{base}/weights/{name}/verify"),
        ("PUT", f"{base}/weights/{name}/ttl"),
    ):
        answer = await raw(ann, method, path)
        assert "1 to 255 characters" in answer or "is not a kind of checkpoint" in answer, (method, path)
    assert await ann.listed(run_id) == ["weights/a"]


@pytest.mark.parametrize(
    "rest",
    [
        "",
        "weights",
        "weights/",
        "/a",
        "weights//a",
        "weights/a/",
        "a/",
        "weights/a/b/c",
        "weights/a/publish/",
        "//",
        "w/a",
    ],
)
async def test_a_slash_more_or_less_names_no_other_checkpoint(ann: User, rest: str) -> None:
    run_id = await ann.run()
    await ann.save(run_id, "a")
    code, _ = await status(ann, "DELETE", f"/api/v1/training_runs/{run_id}/checkpoints/{rest}")

    assert code == (404 if rest == "weights" else 400)  # it could be the name of one
    assert await ann.listed(run_id) == ["weights/a"]


async def raw(user: User, method: str, path: str) -> str:
    code, detail = await status(user, method, path)
    assert code == 400, (code, detail)
    return detail


async def status(user: User, method: str, path: str) -> tuple[int, str]:
    """Sent as it is: clients tidy paths up before they ask."""
    body = {"json": {"ttl_seconds": None}} if method == "PUT" else {}
    request = user.http.build_request(method, "x", **body)  # type: ignore[arg-type]  # one optional argument
    request.url = request.url.copy_with(raw_path=path.encode("latin-1", errors="replace"))
    answer = await user.http.send(request)
    assert answer.headers["content-type"].startswith("application/json")
    return answer.status_code, str(answer.json()["detail"])


async def test_a_page_of_many_is_a_page(context: Context, ann: User) -> None:
    run_id = await ann.run()
    path = await ann.save(run_id, "template")
    row = await context.readable(TinkerPath.parse(path), Caller("ann"))
    for number in range(300):
        await context.catalog.checkpoint_saves.register(
            run_id=run_id,
            kind="weights",
            name=f"s{number}",
            owner="ann",
            archive=f"none/{number}",
            base_model=row.base_model,
            spec=row.spec,
            created_at=row.created_at + timedelta(seconds=number + 1),
            size_bytes=1,
        )

    page = (await ann.http.get("checkpoints")).json()

    assert page["cursor"] == {"offset": 0, "limit": 100, "total_count": 301}
    assert [each["checkpoint_id"] for each in page["checkpoints"]] == [f"weights/s{299 - n}" for n in range(100)]
    assert len(await ann.listed(run_id)) == 301  # a run's list has no pages
