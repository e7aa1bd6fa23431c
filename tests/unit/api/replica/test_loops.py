from __future__ import annotations

import pytest

from chockstone.api.serving.startup import bind
from unit.api.replica.conftest import Start


@pytest.mark.parametrize("credential", ["tml-of-ann", "eyJ.of.ann"])
async def test_an_api_replica_that_is_its_own_engine_says_so(start: Start, credential: str) -> None:
    with bind("127.0.0.1", 0) as sock:
        port = sock.getsockname()[1]
    replica = await start(f"http://127.0.0.1:{port}", port=port)

    given = await replica.http.get("/x", headers={"X-API-Key": credential})

    assert given.status_code == 508
    assert "--engine" in given.json()["detail"]
