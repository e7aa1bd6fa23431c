from __future__ import annotations

from datetime import UTC, datetime

import pytest

from chockstone.api.context import Context
from chockstone.catalog.tables.usage import Use
from support.api.users import User, refusal
from support.served import Served


def this_hour() -> datetime:
    return datetime.now(UTC).replace(minute=0, second=0, microsecond=0)


async def test_a_trace_is_fetched_without_credentials(served: Served, context: Context, ann: User, bob: User) -> None:
    session_id = await ann.session(display_name="sweep é")
    run_id = await ann.run(session_id)
    path = await ann.save(run_id, "traced", user_metadata={"loss": "0.25"})
    facts = {"session_id": session_id, "project_id": None, "base_model": "tiny"}
    await context.catalog.usage.add([Use(this_hour(), "ann", type="training", cached=False, amount=9, **facts)])
    body = {"session_id": session_id, "sampling_session_seq_id": 0, "base_model": "tiny"}
    await ann.http.post("create_sampling_session", json=body)

    answer = (await ann.http.get(f"sessions/{session_id}/trace_export")).json()
    trace = await served.http.get(answer["url"], headers={"X-API-Key": ""})

    assert answer["status"] == "ready"
    assert answer["url"].endswith(f"/{session_id}.pftrace")
    assert trace.status_code == 200
    assert int(trace.headers["content-length"]) == len(trace.content)
    assert trace.content[:1] == b"\n"  # the first packet of a Trace
    for text in (run_id, path, "weights/traced", "sweep é", "checkpoint_saved", "training (tokens per hour)", "0.25"):
        assert text.encode() in trace.content, text
    assert f"{session_id}:sample:0".encode() in trace.content
    refusal(await bob.http.get(f"sessions/{session_id}/trace_export"), 404)


@pytest.mark.parametrize("session_id", ["x", "..", "é", "%00", "x" * 3000])
async def test_a_trace_of_nothing_is_not_found(ann: User, session_id: str) -> None:
    refusal(await ann.http.get(f"sessions/{session_id}/trace_export"), 404)
