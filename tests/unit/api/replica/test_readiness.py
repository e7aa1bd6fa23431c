from __future__ import annotations

import asyncio

import pytest

from chockstone.api.replica import readiness
from chockstone.catalog import CatalogUnavailable
from unit.api.replica.conftest import Recorder, Start


@pytest.fixture(autouse=True)
def ask_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "_FRESH_SECONDS", 0.0)


async def test_a_replica_whose_engine_and_catalog_answer_is_ready(start: Start) -> None:
    engine = Recorder(body=b'{"status": "ok"}')
    replica = await start(engine)

    answer = await replica.http.get("/api/v1/readyz", headers={"X-API-Key": ""})

    assert (answer.status_code, answer.json()) == (200, {"status": "ready"})
    assert [scope["path"] for scope in engine.scopes] == ["/api/v1/healthz"]


@pytest.mark.parametrize("engine", [Recorder(status=500), "http://127.0.0.1:1"], ids=["failing", "away"])
async def test_a_replica_without_an_engine_is_not_ready(start: Start, engine: Recorder | str) -> None:
    replica = await start(engine)

    answer = await replica.http.get("/api/v1/readyz")

    assert answer.status_code == 503
    assert [each["check"] for each in answer.json()["reasons"]] == ["engine"]
    assert "127.0.0.1" not in answer.text, "a probe needs no key"


async def test_every_reason_is_given(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail() -> None:
        raise CatalogUnavailable("db.internal refused")

    replica = await start("http://127.0.0.1:1")
    monkeypatch.setattr(replica.catalog, "ping", fail)

    answer = (await replica.http.get("/api/v1/readyz")).json()

    assert [each["check"] for each in answer["reasons"]] == ["engine", "catalog"]
    assert answer["status"] == "failing" and "db.internal" not in answer["detail"]


async def test_many_probes_ask_once(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "_FRESH_SECONDS", 60.0)
    engine = Recorder()
    replica = await start(engine)

    await asyncio.gather(*(replica.http.get("/api/v1/readyz") for _ in range(20)))

    assert len(engine.scopes) == 1
