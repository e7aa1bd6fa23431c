from __future__ import annotations

from support.api.users import User, refusal


async def test_a_session_is_created_once_for_an_idempotency_key(ann: User, bob: User) -> None:
    body, headers = {"sdk_version": "0.36.0"}, {"X-Idempotency-Key": "k"}

    first, again, of_bob = [
        (await user.http.post("create_session", json=body, headers=headers)).json() for user in (ann, ann, bob)
    ]

    assert first == again
    assert of_bob["session_id"] != first["session_id"]


async def test_a_finished_session_takes_no_work(ann: User, bob: User) -> None:
    session_id = await ann.session()
    assert (await ann.http.post("session_heartbeat", json={"session_id": session_id})).status_code == 200
    refusal(await bob.http.post("session_heartbeat", json={"session_id": session_id}), 404)

    finished = await ann.http.post(f"sessions/{session_id}/finish", json={"reason": {"type": "success"}})

    assert finished.status_code == 204
    assert "finished" in refusal(await ann.http.post("session_heartbeat", json={"session_id": session_id}), 410)
    body = {"session_id": session_id, "model_seq_id": 0, "base_model": "tiny"}
    assert "finished" in refusal(await ann.http.post("create_model", json=body), 410)


async def test_a_search_finds_ones_own_by_words_of_the_name(ann: User, bob: User) -> None:
    wanted = await ann.session(display_name="Learning rate sweep")
    await ann.session(display_name="baseline")
    await bob.session(display_name="rate sweep")

    found = (await ann.http.post("sessions/search", json={"display_name": "SWEEP rate"})).json()["sessions"]

    assert [(each["session_id"], each["status"]) for each in found] == [(wanted, {"type": "active"})]
    others = {"owner": {"type": "user", "owner_urns": ["bob"]}}
    assert (await ann.http.post("sessions/search", json=others)).json()["sessions"] == []
