"""Adapters on one vLLM server: loaded when first needed, unloaded when others are needed more.

vLLM itself evicts the adapter that was unused for longest, but keeps its name. An explicit unload removes the name,
too.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from chockstone.sampling.vllm.connection import UNKNOWN, Connection, VllmError, VllmRefused

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AdapterFiles:
    """A LoRA adapter as PEFT writes it, in a directory that the servers see under the same path.

    ``name`` identifies exactly these bytes.
    """

    name: str
    directory: str
    has_head: bool  # whether it changes the output layer, too


class NotLoaded(VllmError):
    """The server refuses to load this adapter."""


@dataclass(slots=True, eq=False)
class _Slot:
    loading: asyncio.Task[None]
    users: int = 0


class Adapters:
    """At most ``most`` adapters are loaded, unless more are in use at once."""

    def __init__(self, connection: Connection, *, most: int) -> None:
        self._connection = connection
        self._most = most
        self._slots: OrderedDict[str, _Slot] = OrderedDict()  # by name, the longest unused first
        self._leaving: dict[str, asyncio.Task[None]] = {}

    @property
    def names(self) -> set[str]:
        return set(self._slots)

    @asynccontextmanager
    async def lent(self, files: AdapterFiles) -> AsyncIterator[None]:
        """Inside, the adapter is loaded, as far as we know. Raises VllmConnectionLost or NotLoaded.

        If the block raises a refusal with status 404, the server has lost the adapter, and the next request loads it
        again.
        """
        slot = self._slots.get(files.name)
        if slot is None:
            slot = self._slots[files.name] = _Slot(
                asyncio.create_task(self._load(files, after=self._leaving.get(files.name)))
            )
            slot.loading.add_done_callback(lambda task: task.cancelled() or task.exception())  # nobody may await it
        self._slots.move_to_end(files.name)
        slot.users += 1
        try:
            await asyncio.shield(slot.loading)
            yield
        except VllmRefused as error:
            if error.status == UNKNOWN:
                self._drop(files.name, slot)
            raise
        finally:
            if slot.loading.done() and (slot.loading.cancelled() or slot.loading.exception() is not None):
                self._drop(files.name, slot)
            slot.users -= 1

    def forget_all(self) -> None:
        """Forget all adapters: the server was unreachable and may have been restarted."""
        for slot in self._slots.values():
            slot.loading.cancel()
        self._slots.clear()

    async def unload(self, name: str) -> None:
        """Unload an adapter, even if it is in use. Errors are logged only: vLLM evicts it later by itself."""
        if (slot := self._slots.pop(name, None)) is not None:
            leaving = self._leaving[name] = asyncio.create_task(self._unload(name, slot))
            await asyncio.shield(leaving)

    async def _load(self, files: AdapterFiles, *, after: asyncio.Task[None] | None) -> None:
        while len(self._slots) > self._most and (idle := self._longest_unused()) is not None:
            await self.unload(idle)
        if after is not None:
            await asyncio.shield(after)
        try:
            await self._connection.load_adapter(files.name, files.directory)
        except VllmRefused as error:
            raise NotLoaded(
                f"{error}. It must see {files.directory!r} under this very path, and have been started with "
                f"--enable-lora and a --max-lora-rank no less than the run's rank"
            ) from error
        log.info("adapter loaded server=%s adapter=%s", self._connection.url, files.name)

    def _longest_unused(self) -> str | None:
        idle = (name for name, slot in self._slots.items() if not slot.users and slot.loading.done())
        return next(idle, None)

    async def _unload(self, name: str, slot: _Slot) -> None:
        try:
            await asyncio.wait({slot.loading})  # an adapter that is still loading cannot be unloaded
            await self._connection.unload_adapter(name)
            log.info("adapter unloaded server=%s adapter=%s", self._connection.url, name)
        except VllmError as error:
            log.warning("adapter not unloaded server=%s adapter=%s error=%s", self._connection.url, name, error)
        finally:
            if self._leaving[name] is asyncio.current_task():
                del self._leaving[name]

    def _drop(self, name: str, slot: _Slot) -> None:
        if self._slots.get(name) is slot:
            del self._slots[name]
