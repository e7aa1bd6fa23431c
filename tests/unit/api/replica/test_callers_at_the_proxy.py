from __future__ import annotations

import httpx

from unit.api.replica.conftest import Recorder, Start


async def test_an_unknown_key_is_refused_by_the_replica(start: Start) -> None:
    engine = Recorder()
    replica = await start(engine)

    given = await replica.http.post("/api/v1/forward_backward", headers={"X-API-Key": "tml-of-nobody"})

    assert given.status_code == 401
    assert engine.scopes == []


async def test_what_is_no_key_is_for_the_engine_to_judge(start: Start) -> None:
    engine = Recorder(401)
    replica = await start(engine)

    assert (await replica.http.get("/x", headers={"X-API-Key": "eyJ.of.ann"})).status_code == 401
    async with httpx.AsyncClient(trust_env=False) as nobody:
        assert (await nobody.get(f"{replica.url}/api/v1/downloads/a/b")).status_code == 401

    assert len(engine.scopes) == 2


async def test_a_request_without_a_credential_does_not_reach_the_engine(start: Start) -> None:
    engine = Recorder()
    replica = await start(engine)

    assert (await replica.http.post("/x", headers={"X-API-Key": ""})).status_code == 401

    assert engine.scopes == []


async def test_where_no_key_was_ever_made_any_is_for_the_engine_to_judge(start: Start) -> None:
    engine = Recorder(body=b'{"name": "local"}')
    replica = await start(engine, keys={})

    assert (await replica.http.get("/x", headers={"X-API-Key": "tml-any"})).status_code == 200


async def test_where_no_key_was_ever_made_a_foreign_name_does_not_reach_the_engine(start: Start) -> None:
    engine = Recorder(body=b'{"name": "local"}')
    replica = await start(engine, keys={})

    misdirected = await replica.http.get("/x", headers={"Host": "evil.example"})
    refused = await replica.http.get("/x", headers={"Origin": "https://evil.example"})

    assert (misdirected.status_code, refused.status_code) == (421, 403)
    assert engine.scopes == []
