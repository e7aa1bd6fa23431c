from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest
from starlette.types import Receive, Scope, Send

from support.postgres import catalog_url
from support.served import Served, serve_in_process
from unit.api.replica.conftest import KEYS, Recorder, Start, answer


@pytest.fixture
def engine_of_ann() -> Recorder:
    """Vouches for whoever asks that it is Ann."""
    return Recorder(body=orjson.dumps({"name": "ann"}))


READS = [
    "training_runs",
    "training_runs/{run}",
    "training_runs/{run}?access_scope=accessible",
    "training_runs/{run}/checkpoints",
    "training_runs/{run}/checkpoints/weights/one",
    "training_runs/{run}/checkpoints/weights/none",
    "training_runs/no-such-run",
    "checkpoints?limit=1",
    "checkpoints?limit=-1",
    "sessions",
    "sessions/{session}",
    "sessions/no-such-session",
]


@pytest.fixture
def models(tmp_path: Path) -> dict[str, Path]:
    directory = tmp_path / "model"
    directory.mkdir()
    (directory / "config.json").write_text('{"architectures": ["Tiny"]}')
    return {"tiny": directory}


async def test_what_is_read_from_the_catalog_is_what_the_engine_would_have_told(
    start: Start, models: dict[str, Path], tmp_path: Path
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    async with serve_in_process(home, models) as served:
        session, run = await trained(served)
        asked: list[str] = []
        replica = await start(watched(served, asked), keys={}, database=catalog_url(home))

        for path in READS:
            place = path.format(run=run, session=session)
            through, straight = await replica.http.get(f"/api/v1/{place}"), await served.http.get(place)

            assert (through.status_code, through.json()) == (straight.status_code, straight.json()), path
        found = await replica.http.post(
            "/api/v1/sessions/search", json={"owner": {"type": "user", "owner_urns": ["local"]}}
        )

        assert [each["session_id"] for each in found.json()["sessions"]] == [session]
        assert asked == ["/api/v1/auth/apikey/me"]  # once: the engine is believed for a while


async def trained(served: Served) -> tuple[str, str]:
    """A session and a run of it, with a checkpoint."""
    session = await served.session()
    body = {"session_id": session, "model_seq_id": 1, "base_model": "tiny", "lora_config": {"rank": 4, "seed": 0}}
    made = await result(served, "create_model", body)
    run = str(made["model_id"])
    await result(served, "save_weights", {"model_id": run, "seq_id": 1, "path": "one"})
    await served.engine.presence.flush()
    await served.engine.progress.flush()
    return session, run


async def result(served: Served, route: str, body: dict[str, Any]) -> Any:
    accepted = (await served.http.post(route, json=body)).json()
    return (await served.http.post("retrieve_future", json={"request_id": accepted["request_id"]})).json()


def watched(served: Served, asked: list[str]) -> Any:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        asked.append(scope["path"])
        await served.app(scope, receive, send)

    return app


async def test_one_sees_ones_own(start: Start) -> None:
    async def engine(scope: Scope, receive: Receive, send: Send) -> None:
        key = dict(scope["headers"])[b"x-api-key"].decode()
        await answer(send, orjson.dumps({"name": key.removeprefix("eyJ.of.")}))

    replica = await start(engine)
    row = await replica.catalog.sessions.create(
        "a-session",
        owner="ann",
        sdk_version="",
        project_id=None,
        display_name=None,
        tags=[],
        user_metadata={},
        idempotency_key=None,
        now=replica.app.state.context.now(),
    )

    for mine, others in ((KEYS["ann"], KEYS["bob"]), ("eyJ.of.ann", "eyJ.of.bob")):
        for key, sessions, status in ((mine, [row.session_id], 200), (others, [], 404)):
            headers = {"X-API-Key": key}
            listed = await replica.http.get("/api/v1/sessions", headers=headers)
            assert listed.json()["sessions"] == sessions
            one = await replica.http.get(f"/api/v1/sessions/{row.session_id}", headers=headers)
            assert one.status_code == status


async def test_documents_and_other_methods_are_the_engines(start: Start, engine_of_ann: Recorder) -> None:
    replica = await start(engine_of_ann)

    documents = [("GET", path) for path in ("/", "/docs", "/docs/viewer.js", "/openapi.json")]
    for method, path in (*documents, ("POST", "/api/v1/training_runs")):
        assert (await replica.http.request(method, path)).json() == {"name": "ann"}

    sign_in = await replica.http.post("/console/sign-in", headers={"X-API-Key": ""}, content=b"key=tml-of-ann")
    page = await replica.http.get("/console/runs", headers={"X-API-Key": "", "Cookie": "chockstone_console=x"})
    assert (sign_in.status_code, page.status_code) == (200, 200)
    assert engine_of_ann.header("cookie") == [b"chockstone_console=x"]

    metrics = await replica.http.get("/metrics")
    assert "chockstone_loop_stall_seconds" in metrics.text
    assert 'route="(forwarded)"' in metrics.text
    assert "chockstone_worker_ready" not in metrics.text  # the engine's
