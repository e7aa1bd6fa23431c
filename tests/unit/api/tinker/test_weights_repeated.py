from __future__ import annotations

import httpx

from support.api.users import User, refusal


async def retrieve(user: User, request_id: str) -> httpx.Response:
    return await user.http.post("retrieve_future", json={"request_id": request_id})


async def test_a_load_that_is_repeated_needs_its_source_no_more(ann: User) -> None:
    run_id = await ann.run()
    path = await ann.save(run_id, "final")
    body = {"model_id": run_id, "seq_id": 9, "path": path, "optimizer": True}
    session_id = await ann.session()
    creation = {"session_id": session_id, "model_seq_id": 0, "path": path, "optimizer": True}
    into, anew = [(await ann.http.post("load_weights", json=each)).json() for each in (body, creation)]
    for each in (into, anew):
        assert "error" not in (await retrieve(ann, each["request_id"])).json()
    await ann.http.delete(f"training_runs/{run_id}/checkpoints/weights/final")

    again = [await ann.http.post("load_weights", json=each) for each in (body, creation)]

    assert [each.json() for each in again] == [into, anew]
    assert (into["request_id"], anew["request_id"]) == (f"{run_id}:9", f"{session_id}:train:0:0")
    refusal(await ann.http.post("load_weights", json={**body, "seq_id": 10}), 404)
