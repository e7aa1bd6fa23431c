from __future__ import annotations

import orjson
import pytest

from unit.api.replica.conftest import Recorder, Start, listening


@pytest.fixture
def engine_of_ann() -> Recorder:
    """Vouches for whoever asks that it is Ann."""
    return Recorder(body=orjson.dumps({"name": "ann"}))


async def test_a_key_is_known_without_the_engine(start: Start) -> None:
    async with listening(Recorder()) as gone:
        pass
    replica = await start(gone)

    assert (await replica.http.get("/api/v1/training_runs")).json()["training_runs"] == []
    assert (await replica.http.get("/api/v1/training_runs", headers={"X-API-Key": "tml-x"})).status_code == 401
    assert (await replica.http.get("/api/v1/training_runs", headers={"X-API-Key": "eyJ.x"})).status_code == 503


async def test_a_token_is_the_engines_to_know(start: Start, engine_of_ann: Recorder) -> None:
    replica = await start(engine_of_ann)
    of_ann = {"X-API-Key": "eyJ.of.ann"}

    for _ in range(3):
        assert (await replica.http.get("/api/v1/sessions", headers=of_ann)).status_code == 200

    [scope] = engine_of_ann.scopes
    assert (scope["path"], engine_of_ann.header("X-API-Key")) == ("/api/v1/auth/apikey/me", [b"eyJ.of.ann"])


async def test_what_the_engine_says_of_a_token_is_said(start: Start) -> None:
    replica = await start(Recorder(401, body=b'{"detail": "the token has expired"}'))

    given = await replica.http.get("/api/v1/sessions", headers={"X-API-Key": "eyJ.old"})

    assert (given.status_code, given.json()) == (401, {"detail": "the token has expired"})


async def test_an_engine_that_is_none_is_not_believed(start: Start) -> None:
    replica = await start(Recorder(body=b"<html>"))

    assert (await replica.http.get("/api/v1/sessions", headers={"X-API-Key": "eyJ.x"})).status_code == 503
