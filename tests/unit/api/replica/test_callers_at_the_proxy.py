from __future__ import annotations

import httpx

from unit.api.replica.conftest import Recorder, Start, listening


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


async def test_a_bearer_key_of_another_vendors_client_is_judged_and_passed_on(start: Start) -> None:
    engine = Recorder()
    replica = await start(engine)
    del replica.http.headers["X-API-Key"]
    ann, nobody, other = ({"Authorization": f"Bearer tml-of-{name}"} for name in ("ann", "nobody", "bob"))

    assert (await replica.http.post("/v1/x", headers=ann)).status_code == 200
    assert engine.header("Authorization") == [b"Bearer tml-of-ann"]
    refused = await replica.http.post("/anthropic/v1/x", headers=nobody)
    both = await replica.http.post("/oai/api/v1/x", headers=other | {"X-API-Key": "tml-of-ann"})
    ours = await replica.http.post("/api/v1/x", headers=ann)

    assert (refused.status_code, both.status_code, ours.status_code) == (401, 400, 401)
    assert refused.json()["error"]["type"] == "authentication_error"
    assert "hold different keys" in both.json()["error"]["message"]
    assert len(engine.scopes) == 1


async def test_a_bearer_token_is_the_engines_to_know(start: Start) -> None:
    engine = Recorder(body=b'{"name": "ann"}')
    replica = await start(engine)
    del replica.http.headers["X-API-Key"]

    given = await replica.http.get("/v1/models", headers={"Authorization": "Bearer eyJ.of.ann"})

    assert given.status_code == 200
    assert [scope["path"] for scope in engine.scopes] == ["/api/v1/auth/apikey/me", "/v1/models"]


async def test_errors_of_the_engine_pass_and_errors_of_the_replica_have_the_vendors_shape(start: Start) -> None:
    shaped = b'{"error": {"message": "of the engine", "type": "x", "param": null, "code": null}}'
    replica = await start(Recorder(429, [(b"retry-after", b"3"), (b"content-type", b"application/json")], shaped))
    async with listening(Recorder()) as gone:
        pass
    alone = await start(gone)

    passed = await replica.http.post("/v1/x")
    away = await alone.http.post("/anthropic/v1/messages")

    assert (passed.status_code, passed.headers["retry-after"], passed.content) == (429, "3", shaped)
    assert (away.status_code, away.headers["retry-after"]) == (503, "1")
    assert away.json()["error"]["type"] == "api_error"
