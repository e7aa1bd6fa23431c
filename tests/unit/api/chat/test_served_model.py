from __future__ import annotations

from pathlib import Path

import pytest

from chockstone.api.chat.chat_service import ChatService
from chockstone.api.context import Context
from chockstone.api.users import Caller
from chockstone.catalog import RowMissing
from chockstone.wire.failures import BadRequest
from support.api.users import MODEL, User, url_of
from support.chat import CONTEXT

ANN, BOB = Caller("ann"), Caller("bob")


async def test_a_base_model_is_found_by_its_name(chat: ChatService, models: dict[str, Path]) -> None:
    found = await chat.find_model(ANN, MODEL)

    assert (found.base_model, found.path, found.alias, found.max_context) == (MODEL, None, None, CONTEXT)
    assert (found.source.archive, found.source.owner) == (None, "ann")
    assert found.directory == models[MODEL].resolve()


async def test_a_name_may_limit_the_context(chat: ChatService) -> None:
    found = await chat.find_model(ANN, f"{MODEL}:peft:100")

    assert (found.base_model, found.max_context) == (f"{MODEL}:peft:100", 100)


@pytest.mark.parametrize("kind", ["weights", "sampler_weights"])
async def test_a_checkpoint_is_found_by_its_path_and_by_latest(chat: ChatService, ann: User, kind: str) -> None:
    run_id = await ann.run()
    await ann.save(run_id, "first", kind=kind)
    path = await ann.save(run_id, "second", kind=kind)

    for name in (path, f"tinker://{run_id}/{kind}/latest"):
        found = await chat.find_model(ANN, name)
        assert (found.name, found.path, found.base_model) == (name, path, MODEL)
        assert found.source.archive is not None
        assert found.source.seal is not None


async def test_a_checkpoint_of_another_user_is_not_there(chat: ChatService, ann: User) -> None:
    path = await ann.save(await ann.run(), "mine", kind="sampler_weights")

    with pytest.raises(RowMissing, match="not yours or not there"):
        await chat.find_model(BOB, path)


@pytest.mark.parametrize("name", ["gpt", "", "a\0b", "x" * 100_000, "tinker://" + "x" * 10_000, "tinker://a/weights/x"])
async def test_a_model_that_is_not_there_is_missing(chat: ChatService, name: str) -> None:
    with pytest.raises(RowMissing) as caught:
        await chat.find_model(ANN, name)
    assert len(str(caught.value)) < 1000


async def test_a_path_that_is_none_is_refused(chat: ChatService) -> None:
    with pytest.raises(BadRequest, match="is not a checkpoint"):
        await chat.find_model(ANN, "tinker://nothing")


async def test_an_alias_is_resolved_at_each_request(chat: ChatService, ann: User) -> None:
    run_id = await ann.run()
    first, second = [await ann.save(run_id, name, kind="sampler_weights") for name in ("a", "b")]

    for target in (first, second, "helper"):
        await ann.http.put("aliases/prod", json={"target": target})
        found = await chat.find_model(ANN, "prod")
        assert (found.name, found.path or found.base_model) == ("prod", target)
        assert found.alias is not None
    with pytest.raises(RowMissing):
        await chat.find_model(BOB, "prod")


async def test_a_user_s_own_alias_comes_before_that_of_the_server(chat: ChatService, ann: User, root: User) -> None:
    await root.http.put("aliases/prod", json={"target": MODEL, "server_wide": True})
    await ann.http.put("aliases/prod", json={"target": "helper"})

    assert (await chat.find_model(ANN, "prod")).base_model == "helper"
    assert (await chat.find_model(BOB, "prod")).base_model == MODEL
    assert [each.target for each in await chat.list_models(ANN) if each.name == "prod"] == ["helper"]


async def test_models_are_listed_that_the_caller_may_sample_from(chat: ChatService, ann: User, bob: User) -> None:
    private = await ann.save(await ann.run(), "mine", kind="sampler_weights")
    public = await bob.save(await bob.run(), "for_all", kind="sampler_weights")
    await bob.http.post(url_of(public, "publish"))
    await bob.save(await bob.run(), "hidden", kind="sampler_weights")

    names = [each.name for each in await chat.list_models(ANN)]

    assert names == ["helper", MODEL, private, public]
    for name in names:
        await chat.find_model(ANN, name)


async def test_reads_of_another_s_checkpoint_are_audited_once(
    chat: ChatService, context: Context, ann: User, bob: User
) -> None:
    public = await bob.save(await bob.run(), "for_all", kind="sampler_weights")
    await bob.http.post(url_of(public, "publish"))

    for _ in range(3):
        await chat.find_model(ANN, public)

    audit = (await bob.http.get("audit")).json()["entries"]
    assert [entry["purpose"] for entry in audit if entry["event"] == "checkpoint_read"] == ["sample"]
