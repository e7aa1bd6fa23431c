from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from chockstone.api.vendors.credentials import credentials_of, repeated_fields
from chockstone.engine.ownership.data_directory import ARCHIVES
from support.api.users import KEYS
from support.served import Served, serve_in_process

Headers = list[tuple[str, str]]
VENDOR_PATHS = ("/v1/nothing", "/oai/api/v1/nothing", "/anthropic/v1/nothing", "/anthropic/api/v1/nothing")


def scope(path: str, headers: Headers) -> dict[str, object]:
    return {"path": path, "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in headers]}


@pytest.fixture
async def stranger(served: Served) -> AsyncIterator[httpx.AsyncClient]:
    """Without a key. Paths are relative to the root."""
    transport = httpx.ASGITransport(served.app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        yield http


@pytest.mark.parametrize(
    ("headers", "credentials"),
    [
        ([("X-API-Key", "a")], ["a"]),
        ([("Authorization", "Bearer a")], ["a"]),
        ([("Authorization", "bearer   a ")], ["a"]),
        ([("X-API-Key", "a"), ("Authorization", "Bearer a")], ["a"]),
        ([("X-API-Key", "a"), ("Authorization", "Bearer b")], ["a", "b"]),
        ([("X-API-Key", ""), ("Authorization", "Bearer b")], ["b"]),
        ([("X-API-Key", "a"), ("Authorization", "Basic b")], ["a"]),
        ([("Authorization", "Bearer")], []),
        ([("Authorization", "")], []),
        ([("Authorization", "Bearer \xff")], ["\xff"]),
    ],
)
def test_a_vendors_client_sends_its_key_in_either_field(headers: Headers, credentials: list[str]) -> None:
    assert credentials_of(scope("/v1/models", headers)) == credentials


def test_our_own_paths_read_one_field() -> None:
    headers = [("X-API-Key", "a"), ("Authorization", "Bearer b"), ("Authorization", "Bearer c")]

    assert credentials_of(scope("/api/v1/server", headers)) == ["a"]
    assert repeated_fields(scope("/api/v1/server", headers)) == []
    assert repeated_fields(scope("/anthropic/v1/messages", headers)) == ["Authorization"]


@pytest.mark.parametrize("path", VENDOR_PATHS)
async def test_a_known_key_is_admitted_in_either_field(stranger: httpx.AsyncClient, path: str) -> None:
    key = KEYS["ann"]

    for headers in (
        {"X-API-Key": key},
        {"Authorization": f"Bearer {key}"},
        {"X-API-Key": key, "Authorization": f"Bearer {key}"},
    ):
        assert (await stranger.get(path, headers=headers)).status_code == 404, headers


@pytest.mark.parametrize("path", VENDOR_PATHS)
async def test_different_keys_are_refused_and_neither_user_is_served(stranger: httpx.AsyncClient, path: str) -> None:
    ann, bob = KEYS["ann"], KEYS["bob"]

    both = await stranger.get(path, headers={"X-API-Key": ann, "Authorization": f"Bearer {bob}"})
    twice = await stranger.get(path, headers=[("Authorization", f"Bearer {ann}"), ("Authorization", f"Bearer {ann}")])

    assert (both.status_code, twice.status_code) == (400, 400)
    assert "hold different keys" in both.json()["error"]["message"]
    assert "more than one Authorization" in twice.json()["error"]["message"]


async def test_a_bearer_key_does_not_open_our_own_paths(stranger: httpx.AsyncClient) -> None:
    answer = await stranger.get("/api/v1/training_runs", headers={"Authorization": f"Bearer {KEYS['ann']}"})

    assert answer.status_code == 401


async def test_a_refused_bearer_key_is_one_line_of_the_report_of_keys(
    stranger: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    answer = await stranger.get("/v1/nothing", headers={"Authorization": "Bearer tml-wrong"})

    assert answer.status_code == 401
    [line] = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
    assert line.startswith("key refused client=127.0.0.1")
    assert "tml-wrong" not in caplog.text


@pytest.mark.parametrize(("path", "status"), [("/v1/nothing", 404), ("/anthropic/v1/nothing", 404), ("/api/v1/x", 401)])
async def test_a_server_without_keys_takes_placeholders_from_vendors_clients(
    models: dict[str, Path], tmp_path: Path, path: str, status: int
) -> None:
    (tmp_path / "open" / ARCHIVES).mkdir(parents=True)
    async with serve_in_process(tmp_path / "open", models) as served:
        transport = httpx.ASGITransport(served.app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
            named = await http.get(path, headers={"Authorization": "Bearer none"})
            keyless = await http.get(path)

    assert (named.status_code, keyless.status_code) == (status, 401)
