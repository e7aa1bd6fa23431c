from __future__ import annotations

from starlette.types import Message

from chockstone.api.admission.private_answers import kept_private
from support.api.users import User
from support.served import Served


async def test_answers_to_a_key_are_not_kept_by_caches(served: Served, ann: User) -> None:
    run_id = await ann.run()

    for path in ("server", "runs", f"runs/{run_id}", f"training_runs/{run_id}/metrics", "audit", "samplers", "nowhere"):
        answer = await ann.http.get(path)
        assert answer.headers.get_list("cache-control") == ["no-store"], path
    assert "cache-control" not in (await served.http.get("healthz", headers={"X-API-Key": ""})).headers


async def test_a_route_may_say_otherwise() -> None:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    given = [(b"Cache-Control", b"private"), (b"a", b"b")]
    await kept_private(send)({"type": "http.response.start", "status": 200, "headers": given})
    await kept_private(send)({"type": "http.response.start", "status": 204})
    await kept_private(send)({"type": "http.response.body", "body": b"x"})

    assert sent[0]["headers"] == given
    assert sent[1]["headers"] == [(b"cache-control", b"no-store")]
    assert sent[2] == {"type": "http.response.body", "body": b"x"}
