"""Adapters on one vLLM server: loaded on first use, and unloaded least recently used first.

vLLM itself evicts the least recently used adapter from memory; unloading also removes its name.
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

    ``name`` is used for these bytes only.
    """

    name: str
    directory: str
    has_head: bool  # it also changes the output layer


class NotLoaded(VllmError):
    """The server refused to load the adapter."""


@dataclass(slots=True, eq=False)
class _Slot:
    loading: asyncio.Task[None]
    users: int = 0


class Adapters:
    """At most ``most`` are loaded, unless more are in use at once."""

    def __init__(self, connection: Connection, *, most: int) -> None:
        self._connection = connection
        self._most = most
        self._slots: OrderedDict[str, _Slot] = OrderedDict()  # by name, least recently used first
        self._unloading: dict[str, asyncio.Task[None]] = {}

    @property
    def names(self) -> set[str]:
        return set(self._slots)

    @asynccontextmanager
    async def borrow(self, files: AdapterFiles) -> AsyncIterator[None]:
        """Keep the adapter loaded inside the block. Raises VllmConnectionLost or NotLoaded.

        If the block raises VllmRefused with 404, the server has lost the adapter; the next ``borrow`` loads it again.
        """
        slot = self._slots.get(files.name)
        if slot is None:
            slot = self._slots[files.name] = _Slot(
                asyncio.create_task(self._load(files, after=self._unloading.get(files.name)))
            )
            slot.loading.add_done_callback(
                lambda task: task.cancelled() or task.exception()
            )  # perhaps no request waits for it any more
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
        """Assume that nothing is loaded: the server was lost, and another process may answer now."""
        for slot in self._slots.values():
            slot.loading.cancel()
        self._slots.clear()

    async def unload(self, name: str) -> None:
        """Unload now, even if requests use it. Errors are logged only: vLLM evicts unused adapters by itself."""
        if (slot := self._slots.pop(name, None)) is not None:
            unloading = self._unloading[name] = asyncio.create_task(self._unload(name, slot))
            await asyncio.shield(unloading)

    async def _load(self, files: AdapterFiles, *, after: asyncio.Task[None] | None) -> None:
        while len(self._slots) > self._most and (idle := self._least_recently_used()) is not None:
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

    def _least_recently_used(self) -> str | None:
        idle = (name for name, slot in self._slots.items() if not slot.users and slot.loading.done())
        return next(idle, None)

    async def _unload(self, name: str, slot: _Slot) -> None:
        try:
            await asyncio.wait({slot.loading})  # an adapter that is still loading cannot be unloaded, and would stay
            await self._connection.unload_adapter(name)
            log.info("adapter unloaded server=%s adapter=%s", self._connection.url, name)
        except VllmError as error:
            log.warning("adapter not unloaded server=%s adapter=%s error=%s", self._connection.url, name, error)
        finally:
            if self._unloading[name] is asyncio.current_task():
                del self._unloading[name]

    def _drop(self, name: str, slot: _Slot) -> None:
        if self._slots.get(name) is slot:
            del self._slots[name]
