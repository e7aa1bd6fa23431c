from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from chockstone.api.context import Context
from chockstone.engine.ownership.data_directory import ARCHIVES, KEYS_RECORD
from support.api.users import KEYS, User, refusal
from support.served import Served, serve_in_process


@pytest.fixture
async def open_server(models: dict[str, Path], tmp_path: Path) -> AsyncIterator[Served]:
    """Without keys, so that everyone is its admin."""
    home = tmp_path / "open"
    (home / ARCHIVES).mkdir(parents=True)
    async with serve_in_process(home, models) as served:
        yield served


async def whoami(served: Served, key: str) -> httpx.Response:
    return await served.http.get("auth/apikey/me", headers={"X-API-Key": key})


async def test_an_admin_creates_a_key_that_works_at_once_and_is_shown_once(
    served: Served, context: Context, root: User, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)

    answer = await root.http.post("keys", json={"user_id": "carol", "note": "laptop"})
    made = answer.json()
    listed = (await root.http.get("keys")).json()

    assert (made["user_id"], made["note"], made["closed_server"]) == ("carol", "laptop", False)
    assert answer.headers["cache-control"] == "no-store"
    assert (await whoami(served, made["key"])).json()["name"] == "carol"
    [entry] = [each for each in listed["keys"] if each["source"] == "catalog"]
    assert (entry["key_id"], entry["hint"], entry["is_admin"]) == (made["key_id"], made["key"][-4:], False)
    assert [each["user_id"] for each in listed["keys"] if each["source"] == "settings"] == sorted(KEYS)
    assert listed["is_open"] is False
    assert made["key"] not in (await root.http.get("keys")).text
    assert made["key"] not in caplog.text
    assert (context.config.data / KEYS_RECORD).exists()
    entries = (await root.http.get("audit", params={"user": "root"})).json()["entries"]
    assert [(each["event"], each["event_details"]["user_id"]) for each in entries] == [("key_created", "carol")]


async def test_a_revoked_key_is_refused_at_once_with_its_tokens(served: Served, root: User) -> None:
    made = (await root.http.post("keys", json={"user_id": "carol"})).json()
    token = (await served.http.post("auth/token", headers={"X-API-Key": made["key"]})).json()["jwt"]

    revoked = await root.http.delete(f"keys/{made['key_id']}")

    assert (revoked.status_code, revoked.json()["user_id"]) == (200, "carol")
    for credential in (made["key"], token):
        assert (await whoami(served, credential)).status_code == 401
    assert "no valid key" in refusal(await root.http.delete(f"keys/{made['key_id']}"), 404)
    [entry] = [each for each in (await root.http.get("keys")).json()["keys"] if each["source"] == "catalog"]
    assert entry["revoked_at"]
    events = [each["event"] for each in (await root.http.get("audit")).json()["entries"]]
    assert events[:2] == ["key_created", "key_revoked"]


@pytest.mark.parametrize(("method", "path"), [("GET", "keys"), ("POST", "keys"), ("DELETE", "keys/1")])
async def test_only_admins_manage_keys(ann: User, method: str, path: str) -> None:
    answer = await ann.http.request(method, path, json={"user_id": "ann"} if method == "POST" else None)

    assert "only admins" in refusal(answer, 403)


async def test_names_that_are_none_are_refused(root: User) -> None:
    assert "no key is created" in refusal(await root.http.post("keys", json={"user_id": "<b>"}), 400)
    refusal(await root.http.post("keys", json={"user_id": ""}), 422)
    refusal(await root.http.delete("keys/-1"), 422)
    refusal(await root.http.delete("keys/99"), 404)


async def test_the_first_key_closes_an_open_server_and_the_answer_says_so(open_server: Served) -> None:
    before = (await open_server.http.get("keys")).json()

    made = (await open_server.http.post("keys", json={"user_id": "ann"})).json()

    assert before == {"keys": [], "is_open": True}
    assert made["closed_server"] is True
    assert "every request needs a valid key" in made["detail"] and "--admin" in made["detail"]
    assert (await open_server.http.get("training_runs")).status_code == 401
    assert (await whoami(open_server, made["key"])).json()["name"] == "ann"
    answer = await open_server.http.get("keys", headers={"X-API-Key": made["key"]})
    assert answer.status_code == 403, "no user is an admin any more"
