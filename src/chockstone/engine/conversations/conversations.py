"""Conversations: keeps those of all owners within their quotas, and lists, rewards, corrects and deletes them.

What ``keep`` returned for is not lost by a killed server, and with ``synced`` by a power failure neither.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Generic, TypeVar
from weakref import WeakValueDictionary

from chockstone.engine.conversations.answers import (
    ConversationMissing,
    ConversationsFull,
    Correction,
    Feedback,
    KeptConversation,
    StoredAnswer,
    check_reward,
    is_conversation_id,
    new_conversation_id,
    order_of,
)
from chockstone.engine.conversations.conversation_file import ConversationDamaged, ConversationTooNew, decode, encode
from chockstone.engine.conversations.owner_directory import OwnerDirectory, counted_bytes, directory_of
from chockstone.wire.failures import BadRequest, ServerFailure

log = logging.getLogger(__name__)
T = TypeVar("T")
QUOTA_BYTES: Final = 1 << 30
MOST_CORRECTED_TOKENS: Final = 1 << 20
_READ_AT_ONCE: Final = 32
_READ_AT_ONCE_BYTES: Final = 16 << 20
_THREADS: Final = 4
_NO_PLACE: Final = "delete some with `chockstone conversations rm`, or send the request without store"


@dataclass(frozen=True, slots=True)
class ConversationUse:
    """What the conversations of an owner take."""

    count: int
    size_bytes: int
    quota_bytes: int


@dataclass(frozen=True, slots=True)
class ConversationPage(Generic[T]):
    entries: Sequence[T]
    next_before: str | None  # the id to continue before; None: there are no more


@dataclass(slots=True)
class _Use:
    count: int
    size_bytes: int
    is_reported_full: bool = False


class Conversations:
    """For one event loop. Owners are apart: an id of another owner is an id that is not there."""

    def __init__(
        self,
        directory: Path,
        *,
        quota_bytes: int = QUOTA_BYTES,
        reserve_bytes: int = 0,
        synced: bool = False,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """``quota_bytes``: of each owner; 0: nothing is kept. ``reserve_bytes``: of the disk that stay free."""
        self._directory = directory
        self._quota_bytes, self._reserve_bytes = quota_bytes, reserve_bytes
        self._synced = synced
        self._now = now
        self._uses: dict[str, _Use] = {}  # by owner
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # likewise
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="conversations")

    def new_id(self, prefix: str) -> str:
        """An id for an answer, kept or not. ``prefix``: as in ``chatcmpl-`` or ``msg_``."""
        return new_conversation_id(prefix, self._now())

    async def check_room(self, owner: str) -> None:
        """To be called before an answer is sampled that must be kept. Raises ConversationsFull, ServerFailure.

        Answers that are sampled at the same time may go past the quota together.
        """
        if not self._quota_bytes:
            raise ConversationsFull("this server keeps no conversations; send the request without store")
        use = await self._use(owner)
        if use.size_bytes >= self._quota_bytes:
            raise ConversationsFull(
                f"your {use.count} conversations take {use.size_bytes} bytes of {self._quota_bytes}; {_NO_PLACE}"
            )
        if await self._is_disk_full():
            raise ConversationsFull(
                "the disk of the server has less free space than its reserve, so no conversation is kept; tell the "
                "operator, or send the request without store"
            )

    async def keep(self, answer: StoredAnswer) -> str:
        """Keep it; it is durable on return. Returns its id. Raises ServerFailure when it cannot be written."""
        return await asyncio.shield(self._keep(answer))  # what is written is counted, also when the caller leaves

    async def _keep(self, answer: StoredAnswer) -> str:
        kept_at = self._now()
        await self._use(answer.owner)
        try:
            size_bytes = await self._in_thread(lambda: self._write(answer, {}, kept_at=kept_at))
        except (OSError, ValueError) as error:
            log.error("conversation not kept id=%s error=%s", answer.conversation_id, error)
            raise ServerFailure(f"the conversation could not be kept: {_cause(error)}. Send it again.") from error
        use = await self._use(answer.owner)
        use.count += 1
        use.size_bytes += size_bytes
        return answer.conversation_id

    async def keep_quietly(self, answer: StoredAnswer) -> str | None:
        """Keep what the server was set to keep and the client did not ask for: None if there is no room, or no disk."""
        try:
            await self.check_room(answer.owner)
            kept = await self.keep(answer)
        except ConversationsFull as error:
            use = await self._use(answer.owner)
            if not use.is_reported_full:
                log.warning("conversations not kept owner=%s model=%s reason=%s", answer.owner, answer.model, error)
            use.is_reported_full = True
            return None
        except ServerFailure:
            return None
        (await self._use(answer.owner)).is_reported_full = False
        return kept

    async def use(self, owner: str) -> ConversationUse:
        use = await self._use(owner)
        return ConversationUse(use.count, use.size_bytes, self._quota_bytes)

    async def get(self, owner: str, conversation_id: str) -> KeptConversation:
        """Raises ConversationMissing, ServerFailure."""
        await self._use(owner)
        return await self._in_thread(lambda: self._read(owner, conversation_id))

    async def page(
        self,
        owner: str,
        describe: Callable[[KeptConversation], T],
        *,
        limit: int,
        before: str | None = None,
        model: str | None = None,
        is_rewarded: bool | None = None,
        api: str | None = None,
    ) -> ConversationPage[T]:
        """Newest first, those before an id. Damaged ones are left out. No more of them is kept in memory than what
        ``describe`` takes: together they may be as large as the quota.
        """
        await self._use(owner)
        ids = (await self._in_thread(self._directory_of(owner).ids))[::-1]
        if before is not None:
            ids = [each for each in ids if order_of(each) < order_of(before)]
        found: list[T] = []
        last = ""
        async for conversation in self._read_each(owner, ids):
            if not _matches(conversation, model, is_rewarded) or api not in (None, conversation.answer.api):
                continue
            if len(found) == limit:
                return ConversationPage(found, last)
            found.append(describe(conversation))
            last = conversation.conversation_id
        return ConversationPage(found, None)

    async def read_all(
        self, owner: str, *, after: str | None = None, model: str | None = None, is_rewarded: bool | None = None
    ) -> AsyncIterator[KeptConversation]:
        """Oldest first, those after an id that were there at the call. Damaged ones are left out."""
        await self._use(owner)
        ids = await self._in_thread(self._directory_of(owner).ids)
        if after is not None:
            ids = [each for each in ids if order_of(each) > order_of(after)]
        async for conversation in self._read_each(owner, ids):
            if _matches(conversation, model, is_rewarded):
                yield conversation

    async def reward(
        self, owner: str, conversation_id: str, reward: float | None, *, choice: int | None = None
    ) -> KeptConversation:
        """Attach a reward to a choice, in place of the one that it had; None removes it. Durable on return.

        Raises BadRequest, ConversationMissing, ServerFailure.
        """
        checked = None if reward is None else check_reward(reward)
        return await self._attach(owner, conversation_id, choice, lambda old: replace(old, reward=checked))

    async def correct(
        self, owner: str, conversation_id: str, correction: Correction | None, *, choice: int | None = None
    ) -> KeptConversation:
        """The same with what the answer should have been, which counts against the quota. Raises ConversationsFull."""
        if correction is not None and not 0 < len(correction.tokens) <= MOST_CORRECTED_TOKENS:
            raise BadRequest(f"a correction has 1 to {MOST_CORRECTED_TOKENS} tokens, not {len(correction.tokens)}")
        is_limited = correction is not None  # a reward takes next to nothing
        return await self._attach(
            owner, conversation_id, choice, lambda old: replace(old, correction=correction), is_limited=is_limited
        )

    async def delete(self, owner: str, conversation_id: str) -> None:
        """On return its file is gone, with all that was attached. Raises ConversationMissing, ServerFailure."""
        use = await self._use(owner)
        async with self._lock(owner):
            try:
                freed = await self._in_thread(lambda: self._delete(owner, conversation_id))
            except OSError as error:
                raise _unwritable(conversation_id, error) from error
            if freed is None:
                raise ConversationMissing(conversation_id)
            use.count -= 1
            use.size_bytes -= freed

    def stop(self) -> None:
        self._threads.shutdown(wait=False)

    async def _attach(
        self,
        owner: str,
        conversation_id: str,
        choice: int | None,
        change: Callable[[Feedback], Feedback],
        *,
        is_limited: bool = False,
    ) -> KeptConversation:
        use = await self._use(owner)
        async with self._lock(owner):
            old = await self._in_thread(lambda: self._read(owner, conversation_id))
            number = old.choose(choice)
            feedback = {**old.feedback, number: change(old.feedback_on(number))}
            try:
                content = await self._in_thread(lambda: encode(old.answer, feedback, kept_at=old.kept_at))
            except ValueError as error:
                raise BadRequest(f"the correction cannot be kept: {error}") from error
            size = counted_bytes(len(content))
            if is_limited and size > old.size_bytes:
                await self._check_growth(use, size - old.size_bytes)
            try:
                await self._in_thread(lambda: self._directory_of(owner).write(conversation_id, content))
            except OSError as error:
                raise _unwritable(conversation_id, error) from error
            use.size_bytes += size - old.size_bytes
            return replace(old, feedback=feedback, size_bytes=size)

    async def _check_growth(self, use: _Use, size_bytes: int) -> None:
        if use.size_bytes + size_bytes > self._quota_bytes:
            raise ConversationsFull(
                f"the correction takes {size_bytes} bytes more, and your {use.count} conversations have "
                f"{use.size_bytes} bytes of {self._quota_bytes}; delete some with `chockstone conversations rm`"
            )
        if await self._is_disk_full():
            raise ConversationsFull(
                "the disk of the server has less free space than its reserve, so no correction is kept; tell the "
                "operator"
            )

    async def _is_disk_full(self) -> bool:
        return bool(self._reserve_bytes) and await self._in_thread(self._free_bytes) < self._reserve_bytes

    def _write(self, answer: StoredAnswer, feedback: Mapping[int, Feedback], *, kept_at: datetime) -> int:
        content = encode(answer, feedback, kept_at=kept_at)
        self._directory_of(answer.owner).write(answer.conversation_id, content)
        return counted_bytes(len(content))

    def _delete(self, owner: str, conversation_id: str) -> int | None:
        return self._directory_of(owner).delete(conversation_id) if is_conversation_id(conversation_id) else None

    def _read(self, owner: str, conversation_id: str) -> KeptConversation:
        """Raises ConversationMissing, ServerFailure."""
        if not is_conversation_id(conversation_id):
            raise ConversationMissing(conversation_id)
        try:
            content = self._directory_of(owner).read(conversation_id)
            if content is None:
                raise ConversationMissing(conversation_id)
            answer, kept_at, feedback = decode(content, owner=owner, conversation_id=conversation_id)
        except ConversationDamaged as error:
            raise BadRequest(
                f"conversation {conversation_id!r} is damaged on the disk: {error}; delete it", code="damaged"
            ) from error
        except ConversationTooNew as error:
            raise BadRequest(
                f"conversation {conversation_id!r} was kept by a later version: {error}; update the server",
                code="newer",
            ) from error
        except OSError as error:
            raise ServerFailure(f"conversation {conversation_id!r} cannot be read: {_cause(error)}") from error
        return KeptConversation(answer, kept_at, feedback, counted_bytes(len(content)))

    async def _read_each(self, owner: str, conversation_ids: Sequence[str]) -> AsyncIterator[KeptConversation]:
        """Some at once, and of large ones fewer."""
        left = deque(conversation_ids)
        while left:
            some = await self._in_thread(lambda: self._take_readable(owner, left))
            while some:
                yield some.popleft()

    def _take_readable(self, owner: str, conversation_ids: deque[str]) -> deque[KeptConversation]:
        """Those of the first ids, which are taken out."""
        found: deque[KeptConversation] = deque()
        size_bytes = 0
        while conversation_ids and len(found) < _READ_AT_ONCE and size_bytes < _READ_AT_ONCE_BYTES:
            try:
                found.append(self._read(owner, conversation_ids.popleft()))
                size_bytes += found[-1].size_bytes
            except ConversationMissing:
                continue  # it was deleted a moment ago
            except (BadRequest, ServerFailure) as error:
                log.warning("conversation left out of a list error=%s", error)
        return found

    async def _use(self, owner: str) -> _Use:
        """Counted with the first call for an owner, and nothing of the owner is written before."""
        if (known := self._uses.get(owner)) is not None:
            return known
        async with self._lock(owner):
            if (known := self._uses.get(owner)) is None:
                try:
                    count, size_bytes = await self._in_thread(self._directory_of(owner).tidy)
                except OSError as error:
                    log.error("conversations not counted owner=%s error=%s", owner, error)
                    raise ServerFailure(f"your conversations cannot be read: {_cause(error)}") from error
                known = self._uses[owner] = _Use(count, size_bytes)
            return known

    def _free_bytes(self) -> int:
        for place in (self._directory, self._directory.parent):  # the first conversation makes the directory
            try:
                found = os.statvfs(place)
            except FileNotFoundError:
                continue
            except OSError:
                break
            return found.f_bavail * found.f_frsize
        return self._reserve_bytes  # the write says what is wrong

    def _directory_of(self, owner: str) -> OwnerDirectory:
        return OwnerDirectory(directory_of(self._directory, owner), synced=self._synced)

    def _lock(self, owner: str) -> asyncio.Lock:
        return self._locks.setdefault(owner, asyncio.Lock())

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)


def _matches(conversation: KeptConversation, model: str | None, is_rewarded: bool | None) -> bool:
    has_reward = any(given.reward is not None for given in conversation.feedback.values())
    return model in (None, conversation.answer.model) and is_rewarded in (None, has_reward)


def _unwritable(conversation_id: str, error: OSError) -> ServerFailure:
    return ServerFailure(f"conversation {conversation_id!r} cannot be changed: {_cause(error)}. Send it again.")


def _cause(error: Exception) -> str:
    """Without the path, which is nothing to users."""
    return (error.strerror or type(error).__name__) if isinstance(error, OSError) else str(error)
