from __future__ import annotations

import pytest

from unit.api.replica.conftest import Recorder, Start, listening


async def test_an_engine_that_is_not_there_is_told_as_what_clients_try_again(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    async with listening(Recorder()) as gone:
        pass
    replica = await start(gone)

    given = await replica.http.post("/api/v1/forward_backward", content=b"x" * 100_000)

    assert given.status_code == 503
    assert given.headers["retry-after"] == "1"
    assert gone not in given.text, "a stranger learns no internal address"
    assert f"engine unreachable url={gone}" in caplog.text
    assert (await replica.http.get("/api/v1/healthz")).json() == {"status": "ok"}  # of the replica itself


async def test_an_engine_that_comes_back_is_found(start: Start) -> None:
    async with listening(Recorder()) as gone:
        replica = await start(gone)
        assert (await replica.http.get("/x")).status_code == 200
    assert (await replica.http.get("/x")).status_code == 503

    async with listening(Recorder(), port=int(gone.rpartition(":")[2])):
        given = await replica.http.post("/x", content=b"1")

    assert given.status_code == 200
