"""Training requests: what clients may ask of a run. Each returns a request id, and the request is durable then."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from chockstone.backends.protocol import RunSpec
from chockstone.catalog import CheckpointRow
from chockstone.catalog.tables.losses import LossRow
from chockstone.engine.config import Busy
from chockstone.engine.runs.commands import (
    CloseRun,
    ForwardBackward,
    Load,
    LoadSource,
    OpenRun,
    Save,
    SnapshotWeights,
    StepOptimizer,
)
from chockstone.engine.runs.registry import RunRegistry
from chockstone.engine.runs.routing_records import RoutingRecords
from chockstone.engine.runs.run import Run, RunFacts
from chockstone.engine.runs.runner import Runner
from chockstone.engine.storage.verification import SkippedCheckpointRow
from chockstone.wire.codecs.pass_request import peek_tokens
from chockstone.wire.failures import BadRequest
from chockstone.wire.paths import check_name


class TrainingRequests:
    def __init__(self, registry: RunRegistry, runner: Runner, routing: RoutingRecords) -> None:
        self._registry = registry
        self._runner = runner
        self._routing = routing

    async def open(
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
        skipped: Sequence[SkippedCheckpointRow] = (),
    ) -> str:
        """Create a run, perhaps from a checkpoint. A run that exists already is left as it is.

        ``skipped``: newer checkpoints that ``latest`` could not use; the result names them.
        """
        run_id = f"{session_id}:train:{model_seq_id}"
        facts = RunFacts(
            run_id,
            session_id,
            model_seq_id,
            owner,
            base_model,
            spec.to_json(),
            optimizer,
            user_metadata,
            project_id,
            birth=secrets.token_hex(4),
        )
        run = await self._registry.create(facts)
        load = None if source is None else Load(LoadSource.of(source), with_optimizer, tuple(skipped))
        return await self._runner.submit(run, 0, OpenRun(load))

    async def forward_backward(self, run: Run, seq_id: int | None, body: bytes, *, loss: LossRow | None = None) -> str:
        """``loss`` is the custom loss that the request names; it must belong to the run's owner.

        Routing that was recorded for the same tokens becomes a part of the operation, so that a replay has it.
        """
        records = await self._find_routing(run, body)
        command = ForwardBackward(None if loss is None else loss.loss_id, routing_bytes=len(records))
        definition = None if loss is None else loss.definition
        return await self._runner.submit(run, seq_id, command, body + records, loss=definition)

    async def _find_routing(self, run: Run, body: bytes) -> bytes:
        if not self._routing.has_any(run.owner):
            return b""
        try:
            tokens = await asyncio.to_thread(peek_tokens, body)
        except BadRequest:  # the worker says so
            return b""
        return self._routing.find(run.owner, run.base_model, tokens)

    async def optim_step(self, run: Run, seq_id: int | None, params: Mapping[str, Any]) -> str:
        return await self._runner.submit(run, seq_id, StepOptimizer(params))

    async def save(self, run: Run, seq_id: int | None, command: Save) -> str:
        """The future resolves when the archive is durable and its row is written."""
        if command.path.is_latest:
            check_name(command.path.name)  # raises BadRequest
        return await self._runner.submit(run, seq_id, command)

    async def save_for_sampling(self, run: Run, seq_id: int | None, sampler_seq_id: int) -> str:
        """Open a sampling session on the weights that the run has when this command is executed."""
        return await self._runner.submit(run, seq_id, SnapshotWeights(sampler_seq_id))

    async def load(
        self,
        run: Run,
        seq_id: int | None,
        source: CheckpointRow,
        *,
        with_optimizer: bool,
        skipped: Sequence[SkippedCheckpointRow] = (),
    ) -> str:
        """``skipped``: newer checkpoints that ``latest`` could not use; the result names them."""
        return await self._runner.submit(run, seq_id, Load(LoadSource.of(source), with_optimizer, tuple(skipped)))

    async def close(self, run: Run) -> str:
        """Unload the run once its operations have ended."""
        run.begin_closing()
        try:
            return await self._runner.submit(run, None, CloseRun(), is_last=True)
        except (BadRequest, Busy):
            run.cancel_closing()
            raise
