"""Custom losses: graphs that clients uploaded, and which of them the present worker has.

The catalog keeps every loss. The journal of a run keeps those that a replay of the run would use. A loss is sent
to the worker when it is uploaded, and again when a pass needs it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

from chockstone.backends.protocol import Worker, Workers
from chockstone.catalog import Catalog, RowMissing
from chockstone.catalog.tables.losses import LossRow
from chockstone.engine.futures import Futures, Promise, Result
from chockstone.engine.replicas.replica_set import replica_facts
from chockstone.wire.failures import RequestError, ServerFailure
from chockstone.wire.messages.training import CreateCustomLossResponse

log = logging.getLogger(__name__)
Json = Mapping[str, Any]  # Any: plain JSON
_REMEMBERED: Final = 64  # rows of the catalog


class CustomLosses:
    def __init__(self, workers: Workers, catalog: Catalog, futures: Futures) -> None:
        self._workers = workers
        self._catalog = catalog
        self._futures = futures
        self._sent: dict[str, set[int]] = {}  # loss → generations of the workers that have it
        self._uses: Counter[str] = Counter()  # loss → passes in progress that need it
        self._unwanted: set[str] = set()  # of finished sessions; dropped when no pass needs them
        self._order = asyncio.Lock()  # of sending and dropping
        self._tasks: dict[str, asyncio.Task[None]] = {}  # by loss
        self._rows: OrderedDict[str, LossRow] = OrderedDict()  # the last ones used

    def add(self, loss: LossRow) -> str:
        """Have the worker build it. The result, under the loss's own id, says what is wrong with it, if anything."""
        if self._futures.get(loss.loss_id) is None:
            promise = self._futures.promise(loss.owner, loss.loss_id)
            task = asyncio.create_task(self._build(loss, promise))
            self._tasks[loss.loss_id] = task
            task.add_done_callback(lambda _: self._tasks.pop(loss.loss_id, None))
        return loss.loss_id

    async def find(self, loss_id: str, *, owner: str) -> LossRow:
        """A loss that the owner uploaded, in any session. Raises RowMissing, the same for another user's."""
        row = self._rows.get(loss_id)
        if row is None:
            with suppress(RowMissing):
                row = await self._catalog.losses.get(loss_id)
        if row is None or row.owner != owner:
            raise RowMissing(
                f"custom loss {loss_id!r:.120} is not yours or not there; upload it with create_custom_loss"
            )
        self._rows[loss_id] = row
        self._rows.move_to_end(loss_id)
        if len(self._rows) > _REMEMBERED:
            self._rows.popitem(last=False)
        return row

    @asynccontextmanager
    async def in_worker(
        self, loss_id: str, read: Callable[[], Awaitable[Json | None]], *, worker: Worker, generation: int
    ) -> AsyncIterator[None]:
        """Inside, the worker of this generation has the loss, whatever becomes of the loss's session.

        ``read`` gives its definition; if that is None, the catalog does. Raises WorkerLost, and BadRequest when it
        cannot be built. The worker refuses a loss that exists nowhere.
        """
        self._uses[loss_id] += 1
        try:
            if generation not in self._sent.get(loss_id, ()):
                definition = await read()
                if definition is None:
                    with suppress(RowMissing):
                        definition = (await self._catalog.losses.get(loss_id)).definition
                if definition is not None:
                    await self._send(loss_id, definition, worker, generation)
            yield
        finally:
            self._uses[loss_id] -= 1
            if not self._uses[loss_id]:
                del self._uses[loss_id]
                if loss_id in self._unwanted:
                    await self._drop(loss_id)

    async def drop(self, session_id: str) -> None:
        """Drop a finished session's losses from the worker. They are sent again if another session needs them."""
        for loss_id in [known for known in self._sent if known.startswith(f"{session_id}:")]:
            await self._drop(loss_id)

    async def drained(self) -> None:
        for task in list(self._tasks.values()):
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _build(self, loss: LossRow, promise: Promise) -> None:
        try:
            await self._workers.ready()
            ready = next(each.replica for each in replica_facts(self._workers) if each.is_ready)  # none that has left
            worker = self._workers.replicas[ready]
            await self._send(loss.loss_id, loss.definition, worker, worker.generation)
            result = Result(CreateCustomLossResponse(loss_id=loss.loss_id).encode())
        except RequestError as error:
            result = Result.failed(error)
        except Exception as error:  # reported to the client, and logged
            log.exception("loss failed loss=%s", loss.loss_id)
            result = Result.failed(error)
        self._futures.settle(promise, result, operation="create_custom_loss")

    async def _send(self, loss_id: str, definition: Json, worker: Worker, generation: int) -> None:
        async with self._order:
            await worker.add_loss(loss_id, definition, generation=generation)
            living = {each.generation for each in self._workers.replicas}
            self._sent[loss_id] = {generation} | (self._sent.get(loss_id, set()) & living)

    async def _drop(self, loss_id: str) -> None:
        async with self._order:
            if self._uses[loss_id]:
                self._unwanted.add(loss_id)
                return
            self._unwanted.discard(loss_id)
            sent = self._sent.pop(loss_id, set())
            for worker in self._workers.replicas:
                if worker.generation in sent:
                    with suppress(ServerFailure):
                        await worker.drop_loss(loss_id)
