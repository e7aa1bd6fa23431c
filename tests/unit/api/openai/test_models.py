from __future__ import annotations

import httpx

from support.api.users import MODEL, User
from support.openai_answers import answer_of, refusal_of


async def test_models_are_listed_and_shown_by_their_names(http: httpx.AsyncClient, ann: User) -> None:
    path = await ann.save(await ann.run(), "mine", kind="sampler_weights")
    await ann.http.put("aliases/prod", json={"target": path})

    listed = answer_of(await http.get("models"))

    assert listed["object"] == "list"
    names = [each["id"] for each in listed["data"]]
    assert names == ["helper", MODEL, "prod", path]
    for name in names:
        shown = answer_of(await http.get(f"models/{name}"))
        assert (shown["id"], shown["object"]) == (name, "model")
    assert answer_of(await http.get("models/prod"))["root"] == path
    refusal_of(await http.get("models/none"), 404)


async def test_a_checkpoint_of_another_user_is_not_there(http: httpx.AsyncClient, bob: User) -> None:
    path = await bob.save(await bob.run(), "his", kind="sampler_weights")

    assert path not in [each["id"] for each in answer_of(await http.get("models"))["data"]]
    refusal_of(await http.get(f"models/{path}"), 404)
