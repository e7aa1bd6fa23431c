"""Training: the operations on runs, each as it runs at the head of its lane.

What is told to a client is durable first: the row of a run before its id, the archive and then its
row before a path.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any
from weakref import WeakValueDictionary

import orjson

from chockstone.backends.local import WorkerLost
from chockstone.backends.spec import RunSpec
from chockstone.catalog import Catalog, CatalogError, CheckpointExists, CheckpointRow, RowMissing
from chockstone.engine.archives import archive_name, ephemeral_name
from chockstone.engine.backend import Backend
from chockstone.engine.futures import Result
from chockstone.engine.lanes import Lane
from chockstone.engine.limits import Limits
from chockstone.engine.runs import LiveRun, Release, Runs
from chockstone.wire.failures import BadRequest, RequestError, ServerFailure
from chockstone.wire.paths import Kind, TinkerPath

log = logging.getLogger(__name__)


class Training:
    def __init__(
        self, backend: Backend, catalog: Catalog, runs: Runs, limits: Limits, *, now: Callable[[], datetime]
    ) -> None:
        self._backend = backend
        self._catalog = catalog
        self._runs = runs
        self._limits = limits
        self._now = now
        self._writing: WeakValueDictionary[TinkerPath, asyncio.Lock] = WeakValueDictionary()

    def open(
        self,
        session_id: str,
        model_seq_id: int,
        *,
        owner: str,
        base_model: str,
        spec: RunSpec,
        optimizer: Mapping[str, Any],
        user_metadata: Mapping[str, str],
        project_id: str | None,
        source: CheckpointRow | None = None,
        with_optimizer: bool = False,
    ) -> str:
        """Make a run, perhaps from a checkpoint, and return the request id of its making."""
        run_id = f"{session_id}:train:{model_seq_id}"
        if (existing := self._runs.get(run_id)) is not None:
            return existing.opening_id
        lane = Lane(limit=self._limits.operations_per_run)
        live = LiveRun(run_id, session_id, owner, base_model, spec.to_json(), optimizer, lane)
        self._runs.add(live)

        async def act(_: Release) -> Result:
            try:
                row = await self._catalog.runs.create(
                    session_id,
                    model_seq_id,
                    owner=owner,
                    base_model=base_model,
                    spec=live.spec,
                    optimizer_config=optimizer,
                    user_metadata=user_metadata,
                    project_id=project_id,
                    now=self._now(),
                )
                if row.state != "active":
                    await self._catalog.runs.set_state(run_id, "active")
                if source is not None:
                    _check_base_model(live, source)
                await self._backend.call(
                    "open_run", {"run_id": run_id, "base_model": base_model, "spec": dict(live.spec)}
                )
                if source is not None:
                    await self._load(live, source, with_optimizer=with_optimizer)
                if self._runs.get(run_id) is not live:  # a worker died while this waited for the next one
                    raise ServerFailure(live.problem)
            except Exception as error:
                await self._give_up(live, error)
                raise
            log.info("run opened run=%s owner=%s base_model=%s rank=%d", run_id, owner, base_model, spec.rank)
            return _json(model_id=run_id, type="create_model" if source is None else "load_weights")

        live.opening_id = self._runs.submit(live, 0, act)
        return live.opening_id

    def forward_backward(self, live: LiveRun, seq_id: int | None, body: bytes) -> str:
        async def act(_: Release) -> Result:
            reply = await self._backend.call("pass", {"run_id": live.run_id}, body)
            return Result(reply.body, "pass")

        return self._runs.submit(live, seq_id, act, size_bytes=len(body))

    def optim_step(self, live: LiveRun, seq_id: int | None, params: Mapping[str, Any]) -> str:
        async def act(_: Release) -> Result:
            reply = await self._backend.call("optim_step", {"run_id": live.run_id, "params": dict(params)})
            return _json(metrics=reply.values["metrics"], type="optim_step")

        return self._runs.submit(live, seq_id, act)

    def save(
        self,
        live: LiveRun,
        seq_id: int | None,
        path: TinkerPath,
        *,
        ttl_seconds: int | None,
        overwrite: bool,
        user_metadata: Mapping[str, str],
    ) -> str:
        """Save under a name. The future resolves when the archive is durable and its row is written."""

        async def act(release: Release) -> Result:
            async with self._writing.setdefault(path, asyncio.Lock()):  # one at a time under a name
                return await write(release)

        async def write(release: Release) -> Result:
            now = self._now()
            archive = archive_name(path.run_id, path.kind, path.name, seq_id)
            try:
                row = await self._catalog.checkpoints.begin(
                    live.run_id,
                    path.kind.value,
                    path.name,
                    owner=live.owner,
                    archive=archive,
                    base_model=live.base_model,
                    spec=live.spec,
                    optimizer_config=live.optimizer,
                    user_metadata=user_metadata,
                    expires_at=None if ttl_seconds is None else now + timedelta(seconds=ttl_seconds),
                    overwrite=overwrite,
                    now=now,
                )
            except CheckpointExists as error:
                raise _name_taken(path) from error
            if row.state != "pending":
                raise _name_taken(path)  # by a run of the same id, before it was lost
            values = {
                "run_id": live.run_id,
                "archive": archive,
                "kind": str(path.kind),
                "metadata": {
                    "path": str(path),
                    "owner": live.owner,
                    "base_model": live.base_model,
                    "spec": dict(live.spec),
                    "optimizer_config": dict(live.optimizer),
                    "user_metadata": dict(user_metadata),
                },
                "ttl_seconds": ttl_seconds,
            }
            try:
                reply = await self._backend.call("save", values, on_release=release)
                size_bytes = reply.values["size_bytes"]
                committed = await self._catalog.checkpoints.commit(row, size_bytes=size_bytes, now=self._now())
            except BaseException:
                await self._catalog.checkpoints.fail(row)
                raise
            if committed.replaced is not None:
                await self._forget(committed.replaced)
            log.info("checkpoint saved path=%s bytes=%d", path, size_bytes)
            word = "save_weights" if path.kind is Kind.WEIGHTS else "save_weights_for_sampler"
            return _json(path=str(path), size_bytes=size_bytes, type=word)

        return self._runs.submit(live, seq_id, act)

    def save_for_sampling(self, live: LiveRun, seq_id: int | None, sampler_seq_id: int) -> str:
        """Open a sampling session on the run's weights as they are when the lane comes to it."""

        async def act(_: Release) -> Result:
            sampler_id = f"{live.session_id}:sample:{sampler_seq_id}"
            archive = ephemeral_name(sampler_id)
            await self._backend.call("snapshot", {"run_id": live.run_id, "archive": archive})
            await self._catalog.samplers.create(
                live.session_id,
                sampler_seq_id,
                owner=live.owner,
                base_model=live.base_model,
                archive=archive,
                now=self._now(),
            )
            return _json(sampling_session_id=sampler_id, type="save_weights_for_sampler")

        return self._runs.submit(live, seq_id, act)

    def load(self, live: LiveRun, seq_id: int | None, source: CheckpointRow, *, with_optimizer: bool) -> str:
        async def act(_: Release) -> Result:
            await self._load(live, source, with_optimizer=with_optimizer)
            path = TinkerPath.of(source.run_id, source.kind, source.name)
            return _json(path=str(path), model_id=live.run_id, type="load_weights")

        return self._runs.submit(live, seq_id, act)

    def close(self, live: LiveRun) -> str:
        """Free what the run holds once its operations have ended."""

        async def act(_: Release) -> Result:
            await self._backend.call("close_run", {"run_id": live.run_id})
            self._runs.remove(live)
            live.problem = f"run {live.run_id!r} was unloaded; resume it from a checkpoint"
            await self._catalog.runs.set_state(live.run_id, "unloaded")
            log.info("run unloaded run=%s", live.run_id)
            return _json(model_id=live.run_id, type="unload_model")

        live.is_closing = True
        return self._runs.submit(live, None, act, is_last=True)

    async def _load(self, live: LiveRun, source: CheckpointRow, *, with_optimizer: bool) -> None:
        _check_base_model(live, source)
        try:  # a save ahead in the lane may have replaced it since
            newest = await self._catalog.checkpoints.get(source.run_id, source.kind, source.name, now=self._now())
        except RowMissing as error:
            raise BadRequest(str(error)) from error
        values = {"run_id": live.run_id, "archive": newest.archive, "with_optimizer": with_optimizer}
        await self._backend.call("load", values)

    async def _give_up(self, live: LiveRun, error: Exception) -> None:
        """Leave nothing loaded of a run that could not be made, and say why in its row."""
        live.problem = live.problem or f"run {live.run_id!r} could not be made: {error}"
        self._runs.remove(live)
        if self._runs.get(live.run_id) is not None:
            return  # it was made anew meanwhile
        with suppress(CatalogError):  # there may be no row
            await self._catalog.runs.set_state(live.run_id, "lost", failure=live.problem)
        if not isinstance(error, WorkerLost):
            with suppress(RequestError):
                await self._backend.call("close_run", {"run_id": live.run_id})

    async def _forget(self, replaced: CheckpointRow) -> None:
        try:
            await self._backend.call("forget", {"archive": replaced.archive})
        except RequestError as error:  # the save is done all the same
            log.warning("replaced archive not deleted archive=%s error=%s", replaced.archive, error)


def _json(**values: Any) -> Result:  # Any: plain JSON
    return Result(orjson.dumps(values))


def _check_base_model(live: LiveRun, source: CheckpointRow) -> None:
    if source.base_model != live.base_model:
        raise BadRequest(
            f"the checkpoint is of base model {source.base_model!r}, and run {live.run_id!r} of {live.base_model!r}"
        )


def _name_taken(path: TinkerPath) -> BadRequest:
    hint = ", or save with overwrite=True" if path.kind is Kind.WEIGHTS else ""
    return BadRequest(f"{path} exists already: choose another name{hint}")
