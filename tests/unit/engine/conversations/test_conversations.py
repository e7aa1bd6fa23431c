from __future__ import annotations

import asyncio
import errno
import logging
import weakref
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from chockstone.engine.conversations import (
    ConversationMissing,
    Conversations,
    ConversationsFull,
    Correction,
    Feedback,
)
from chockstone.engine.conversations import conversations as conversation_module
from chockstone.engine.conversations.owner_directory import OwnerDirectory
from chockstone.wire.failures import BadRequest, ServerFailure
from support.engine.making import NOW
from support.engine.stored_answers import stored_answer, stored_choice

Open = Callable[..., Conversations]


@pytest.fixture
async def again(tmp_path: Path) -> AsyncIterator[Open]:
    """Opens the same directory, as another server does."""
    opened: list[Conversations] = []

    def again(**facts: Any) -> Conversations:
        opened.append(Conversations(tmp_path / "conversations", **({"now": lambda: NOW} | facts)))
        return opened[-1]

    yield again
    for conversations in opened:
        conversations.stop()


@pytest.fixture
def conversations(again: Open) -> Conversations:
    return again()


def files(tmp_path: Path) -> list[Path]:
    return [path for path in tmp_path.rglob("*") if path.is_file()]


async def exported(conversations: Conversations, owner: str = "ada", **facts: Any) -> list[str]:
    return [each.conversation_id async for each in conversations.read_all(owner, **facts)]


async def keep_some(conversations: Conversations, count: int, **facts: Any) -> list[str]:
    """One second apart."""
    ids = []
    for at in range(count):
        moment = NOW + timedelta(seconds=at)
        with_time = Conversations.new_id(_At(moment), "resp_" if at % 2 else "chatcmpl-")  # type: ignore[arg-type]  # a stand-in
        ids.append(await conversations.keep(stored_answer(conversation_id=with_time, **facts)))
    return ids


class _At:
    def __init__(self, moment: Any) -> None:
        self._now = lambda: moment


async def test_what_is_kept_is_there_for_the_next_server(conversations: Conversations, again: Open) -> None:
    answer = stored_answer()
    conversation_id = await conversations.keep(answer)

    found = await again().get("ada", conversation_id)

    assert found.answer.choices == tuple(answer.choices)
    assert found.answer.prompt_tokens == answer.prompt_tokens
    assert found.kept_at == NOW
    assert (await again().use("ada")).size_bytes == (await conversations.use("ada")).size_bytes == 4096


async def test_another_users_conversation_is_not_there(conversations: Conversations) -> None:
    conversation_id = await conversations.keep(stored_answer("ada"))

    for call in (
        conversations.get("eve", conversation_id),
        conversations.reward("eve", conversation_id, 1.0),
        conversations.correct("eve", conversation_id, Correction((1,))),
        conversations.delete("eve", conversation_id),
    ):
        with pytest.raises(ConversationMissing, match="is not yours or not there"):
            await call
    assert not (await conversations.page("eve", str, limit=9)).entries
    assert not await exported(conversations, "eve")
    assert (await conversations.get("ada", conversation_id)).feedback == {}


@pytest.mark.parametrize("conversation_id", ["", "../ada", "chatcmpl-" + "z" * 32, "x" * 10_000, "a\0b"])
async def test_a_hostile_id_is_an_id_that_is_not_there(conversation_id: str, conversations: Conversations) -> None:
    with pytest.raises(ConversationMissing):
        await conversations.get("ada", conversation_id)
    with pytest.raises(ConversationMissing):
        await conversations.delete("ada", conversation_id)
    with pytest.raises(ConversationMissing):
        await conversations.reward("ada", conversation_id, 1.0)


async def test_pages_have_the_newest_first_and_exports_the_oldest(conversations: Conversations) -> None:
    ids = await keep_some(conversations, 70)

    pages, before = [], None
    while True:
        page = await conversations.page("ada", lambda each: each.conversation_id, limit=30, before=before)
        pages.append(list(page.entries))
        if (before := page.next_before) is None:
            break

    assert [len(page) for page in pages] == [30, 30, 10]
    assert [each for page in pages for each in page] == ids[::-1]
    assert await exported(conversations) == ids
    assert await exported(conversations, after=ids[66]) == ids[67:]


async def test_a_list_holds_few_large_conversations_at_once(
    conversations: Conversations, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversation_module, "_READ_AT_ONCE_BYTES", 2 * 4096)
    ids = await keep_some(conversations, 5)
    alive: weakref.WeakValueDictionary[int, Messages] = weakref.WeakValueDictionary()
    most = 0

    class Messages(list[Any]):
        """Messages that tell whether they are still in memory."""

    decode = conversation_module.decode

    def decode_watched(*args: Any, **facts: Any) -> Any:
        nonlocal most
        answer, *rest = decode(*args, **facts)
        messages = alive[len(seen)] = Messages(answer.messages)
        seen.append(answer.conversation_id)
        most = max(most, len(alive))
        return replace(answer, messages=messages), *rest

    seen: list[str] = []
    monkeypatch.setattr(conversation_module, "decode", decode_watched)

    page = await conversations.page("ada", lambda each: each.conversation_id, limit=9)

    assert page.entries == ids[::-1]
    assert most <= 3, "two of them, and the one before"


async def test_a_list_can_be_of_one_model_or_of_rewarded_answers_only(conversations: Conversations) -> None:
    first, second = await keep_some(conversations, 2)
    (third,) = await keep_some(conversations, 1, model="other")
    await conversations.reward("ada", second, 0.0)

    assert await exported(conversations, is_rewarded=True) == [second]
    assert first not in await exported(conversations, model="other")
    page = await conversations.page("ada", lambda each: each.conversation_id, limit=9, model="other", is_rewarded=False)
    assert page.entries == [third]


async def test_rewards_and_corrections_are_attached_and_replaced(conversations: Conversations, again: Open) -> None:
    conversation_id = await conversations.keep(stored_answer(choices=[stored_choice(), stored_choice()]))

    await conversations.reward("ada", conversation_id, 1.0, choice=1)
    await conversations.reward("ada", conversation_id, -2.0, choice=1)
    await conversations.correct("ada", conversation_id, Correction((1, 2), "no"), choice=0)
    await conversations.reward("ada", conversation_id, 3.0, choice=0)
    await conversations.reward("ada", conversation_id, None, choice=0)

    found = await again().get("ada", conversation_id)
    assert found.feedback == {1: Feedback(-2.0), 0: Feedback(None, Correction((1, 2), "no"))}


async def test_rewards_that_are_sent_at_once_are_all_kept(conversations: Conversations) -> None:
    conversation_id = await conversations.keep(stored_answer(choices=[stored_choice()] * 20))

    await asyncio.gather(*(conversations.reward("ada", conversation_id, float(n), choice=n) for n in range(20)))

    found = await conversations.get("ada", conversation_id)
    assert {choice: given.reward for choice, given in found.feedback.items()} == {n: float(n) for n in range(20)}


@pytest.mark.parametrize("reward", [float("nan"), float("inf"), 1e300])
async def test_a_hostile_reward_is_refused(reward: float, conversations: Conversations) -> None:
    conversation_id = await conversations.keep(stored_answer())

    with pytest.raises(BadRequest):
        await conversations.reward("ada", conversation_id, reward)

    assert (await conversations.get("ada", conversation_id)).feedback == {}


@pytest.mark.parametrize("tokens", [(), (2**31,), (-(2**31) - 1,), (1,) * ((1 << 20) + 1)])
async def test_a_hostile_correction_is_refused(tokens: tuple[int, ...], conversations: Conversations) -> None:
    conversation_id = await conversations.keep(stored_answer())

    with pytest.raises(BadRequest):
        await conversations.correct("ada", conversation_id, Correction(tokens))

    assert (await conversations.get("ada", conversation_id)).feedback == {}


async def test_a_deletion_deletes_the_bytes(conversations: Conversations, tmp_path: Path) -> None:
    conversation_id = await conversations.keep(stored_answer(messages=[{"role": "user", "content": "my secret"}]))
    await conversations.correct("ada", conversation_id, Correction((1, 2), "another secret"))
    assert any(b"secret" in path.read_bytes() for path in files(tmp_path))

    await conversations.delete("ada", conversation_id)

    assert not files(tmp_path)
    assert (await conversations.use("ada")).size_bytes == 0
    with pytest.raises(ConversationMissing):
        await conversations.delete("ada", conversation_id)


async def test_a_full_quota_refuses_what_must_be_kept_until_something_is_deleted(again: Open) -> None:
    conversations = again(quota_bytes=8192)
    await conversations.check_room("ada")
    ids = await keep_some(conversations, 2)

    with pytest.raises(ConversationsFull, match="your 2 conversations take 8192 bytes of 8192; delete some"):
        await conversations.check_room("ada")
    await conversations.check_room("eve")  # has a quota of its own

    await conversations.delete("ada", ids[0])
    await conversations.check_room("ada")


async def test_a_correction_counts_against_the_quota(again: Open) -> None:
    conversations = again(quota_bytes=3 * 4096)
    [conversation_id, _] = await keep_some(conversations, 2)

    with pytest.raises(ConversationsFull, match="the correction takes 16384 bytes more"):
        await conversations.correct("ada", conversation_id, Correction((7,) * 3000))
    corrected = await conversations.correct("ada", conversation_id, Correction((7,) * 1024))
    rewarded = await conversations.reward("ada", conversation_id, 1.0)

    assert (corrected.size_bytes, rewarded.size_bytes) == (8192, 8192)
    assert (await conversations.use("ada")).size_bytes == 3 * 4096
    await conversations.correct("ada", conversation_id, None)
    assert (await conversations.use("ada")).size_bytes == 2 * 4096


async def test_what_the_client_did_not_ask_for_is_left_out_when_there_is_no_room(
    again: Open, caplog: pytest.LogCaptureFixture
) -> None:
    conversations = again(quota_bytes=4096)
    kept = await conversations.keep_quietly(stored_answer())

    with caplog.at_level(logging.WARNING):
        dropped = [await conversations.keep_quietly(stored_answer()) for _ in range(3)]

    assert dropped == [None] * 3
    assert await exported(conversations) == [kept]
    assert [record.message for record in caplog.records if "not kept" in record.message][1:] == []


async def test_a_server_that_keeps_nothing_says_so(again: Open, tmp_path: Path) -> None:
    conversations = again(quota_bytes=0)

    with pytest.raises(ConversationsFull, match="keeps no conversations"):
        await conversations.check_room("ada")
    assert await conversations.keep_quietly(stored_answer()) is None
    assert not files(tmp_path)


async def test_a_disk_below_its_reserve_keeps_nothing_more(again: Open) -> None:
    with pytest.raises(ConversationsFull, match="less free space than its reserve"):
        await again(reserve_bytes=1 << 62).check_room("ada")


async def test_an_answer_that_cannot_be_written_is_no_kept_answer(
    conversations: Conversations, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(tmp_path))

    monkeypatch.setattr(OwnerDirectory, "write", fail)

    with pytest.raises(ServerFailure, match="could not be kept: No space left on device") as caught:
        await conversations.keep(stored_answer())
    assert str(tmp_path) not in str(caught.value)
    assert await conversations.keep_quietly(stored_answer()) is None
    assert (await conversations.use("ada")).count == 0


async def test_damage_costs_one_conversation(
    conversations: Conversations, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ids = await keep_some(conversations, 3)
    (victim,) = [path for path in files(tmp_path) if ids[1] in path.name]
    victim.write_bytes(victim.read_bytes().replace(b"prod", b"prob"))

    assert await exported(conversations) == [ids[0], ids[2]]
    with pytest.raises(BadRequest, match="is damaged on the disk"):
        await conversations.get("ada", ids[1])
    await conversations.delete("ada", ids[1])
    assert "conversation left out of a list" in caplog.text


async def test_the_file_of_one_user_in_the_directory_of_another_is_not_read(
    conversations: Conversations, tmp_path: Path
) -> None:
    (mine,) = await keep_some(conversations, 1)
    (theirs,) = await keep_some(conversations, 1, owner="eve")
    (source,) = [path for path in files(tmp_path) if theirs in path.name]
    (place,) = [path for path in files(tmp_path) if mine in path.name]
    place.with_name(source.name).write_bytes(source.read_bytes())

    assert await exported(conversations) == [mine]


async def test_a_conversation_that_is_deleted_during_an_export_is_left_out(conversations: Conversations) -> None:
    ids = await keep_some(conversations, 40)
    found = []

    async for each in conversations.read_all("ada"):
        found.append(each.conversation_id)
        if len(found) == 1:
            await conversations.delete("ada", ids[35])

    assert found == [*ids[:35], *ids[36:]]
