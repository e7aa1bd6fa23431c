"""Training: the operations on runs, each as it runs at the head of its lane.

What is told to a client is durable first: the row of a run before its id, the archive and then its
row before a path.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, Final

import orjson

from chockstone.backends.local import WorkerLost
from chockstone.backends.spec import RunSpec
from chockstone.catalog import Catalog, CatalogError, CheckpointRow, RowMissing
from chockstone.engine.archives import ephemeral_name
from chockstone.engine.backend import Backend
from chockstone.engine.checkpoints import Checkpoints, Skipped
from chockstone.engine.futures import Result
from chockstone.engine.lanes import Lane
from chockstone.engine.limits import Limits
from chockstone.engine.runs import LiveRun, Release, Runs
from chockstone.engine.saving import Order, Saving
from chockstone.engine.usage import UsageMeter
from chockstone.wire.failures import BadRequest, RequestError, ServerFailure
from chockstone.wire.paths import Kind, TinkerPath, check_name

log = logging.getLogger(__name__)
_SAVED: Final = {
    Kind.WEIGHTS: "save_weights",
    Kind.SAMPLER_WEIGHTS: "save_weights_for_sampler",
    Kind.EXTERNAL_WEIGHTS: "save_weights_external",
}


class Training:
    def __init__(
        self,
        backend: Backend,
        catalog: Catalog,
        runs: Runs,
        limits: Limits,
        saving: Saving,
        checkpoints: Checkpoints,
        usage: UsageMeter,
        *,
        now: Callable[[], datetime],
    ) -> None:
        self._backend = backend
        self._catalog = catalog
        self._runs = runs
        self._limits = limits
        self._saving = saving
        self._checkpoints = checkpoints
        self._usage = usage
        self._now = now
        self.on_unnamed: Callable[[str, str], None] = lambda _run, _sampler: None  # weights to sample from were made

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
        skipped: Sequence[Skipped] = (),
    ) -> str:
        """Make a run, perhaps from a checkpoint, and return the request id of its making.

        ``skipped`` is what was walked past to find the checkpoint; the result says so.
        """
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
                    raise ServerFailure(live.problem or f"run {run_id!r} was unloaded")
            except Exception as error:
                await self._give_up(live, error)
                raise
            told = f"run={run_id} owner={owner} base_model={base_model} rank={spec.rank}"
            if source is None:
                log.info("run opened %s", told)
                return _json(model_id=run_id, type="create_model")
            log.info("run opened %s from=%s skipped=%d", told, source.path, len(skipped))
            return _loaded(live, source, skipped)

        live.opening_id = self._runs.submit(live, 0, act)
        return live.opening_id

    def forward_backward(self, live: LiveRun, seq_id: int | None, body: bytes) -> str:
        async def act(_: Release) -> Result:
            reply = await self._backend.call("pass", {"run_id": live.run_id}, body)
            tokens = reply.values.get("tokens", 0)
            self._usage.trained(live.session_id, owner=live.owner, base_model=live.base_model, tokens=tokens)
            return Result(reply.body, "pass")

        return self._runs.submit(live, seq_id, act, size_bytes=len(body))

    def optim_step(self, live: LiveRun, seq_id: int | None, params: Mapping[str, Any]) -> str:
        async def act(_: Release) -> Result:
            reply = await self._backend.call("optim_step", {"run_id": live.run_id, "params": dict(params)})
            metrics = reply.values["metrics"]
            live.steps = int(metrics.get("steps", live.steps))
            return _json(metrics=metrics, type="optim_step")

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
        recipients: Sequence[str] = (),
    ) -> str:
        """Save under a name. The future resolves when the archive is durable and its row is written."""
        if path.is_latest:
            check_name(path.name)  # which says so
        order = Order(path, ttl_seconds, overwrite, user_metadata, tuple(recipients))

        async def act(release: Release) -> Result:
            size_bytes = await self._saving.save(live, seq_id, order, release)
            return _json(path=str(path), size_bytes=size_bytes, type=_SAVED[path.kind])

        return self._runs.submit(live, seq_id, act)

    def save_for_sampling(self, live: LiveRun, seq_id: int | None, sampler_seq_id: int) -> str:
        """Open a sampling session on the run's weights as they are when the lane comes to it."""

        async def act(_: Release) -> Result:
            sampler_id = f"{live.session_id}:sample:{sampler_seq_id}"
            archive = ephemeral_name(sampler_id)
            reserve_bytes = self._saving.reserve_bytes
            values = {"run_id": live.run_id, "archive": archive, "reserve_bytes": reserve_bytes}
            await self._backend.call("snapshot", values)
            await self._catalog.samplers.create(
                live.session_id,
                sampler_seq_id,
                owner=live.owner,
                base_model=live.base_model,
                archive=archive,
                now=self._now(),
            )
            self.on_unnamed(live.run_id, sampler_id)
            return _json(sampling_session_id=sampler_id, type="save_weights_for_sampler")

        return self._runs.submit(live, seq_id, act)

    def load(
        self,
        live: LiveRun,
        seq_id: int | None,
        source: CheckpointRow,
        *,
        with_optimizer: bool,
        skipped: Sequence[Skipped] = (),
    ) -> str:
        """``skipped`` is what was walked past to find the checkpoint; the result says so."""

        async def act(_: Release) -> Result:
            await self._load(live, source, with_optimizer=with_optimizer)
            return _loaded(live, source, skipped)

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
        if newest.save_id != source.save_id and not (newest.public or newest.owner == live.owner):
            raise BadRequest(f"checkpoint {source.path!r} was replaced before it could be loaded; ask for it again")
        if newest.state == "damaged":
            raise BadRequest(f"checkpoint {newest.path!r} is damaged: {newest.damage}")
        values = {"run_id": live.run_id, "archive": newest.archive, "with_optimizer": with_optimizer}
        try:
            await self._backend.call("load", values)
        except RequestError as error:
            await self._checkpoints.found_bad(newest, error)
            raise
        live.steps = (newest.step or 0) if with_optimizer else 0

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


def _json(**values: Any) -> Result:  # Any: plain JSON
    return Result(orjson.dumps(values))


def _check_base_model(live: LiveRun, source: CheckpointRow) -> None:
    if source.base_model != live.base_model:
        raise BadRequest(
            f"the checkpoint is of base model {source.base_model!r}, and run {live.run_id!r} of {live.base_model!r}"
        )


def _loaded(live: LiveRun, source: CheckpointRow, skipped: Sequence[Skipped]) -> Result:
    told = {"path": source.path, "model_id": live.run_id, "type": "load_weights"}
    if not skipped:
        return _json(**told)
    return _json(**told, skipped=[{"path": each.path, "reason": each.reason} for each in skipped])
