from __future__ import annotations

from support.api.users import User

LOSS = {
    "name": "mine",
    "inputs": [{"name": "logprobs", "rank": 1}],
    "graph": {"nodes": [{"op": "placeholder", "name": "logprobs", "target": "logprobs"}]},
}


async def test_a_loss_that_is_uploaded_again_gets_its_first_answer(ann: User) -> None:
    session_id = await ann.session()
    body = {"session_id": session_id, "custom_loss_seq_id": 3, **LOSS}

    first, again = [(await ann.http.post("create_custom_loss", json=body)).json() for _ in range(2)]

    assert first == again
    assert first["request_id"] == f"{session_id}:loss:3"
