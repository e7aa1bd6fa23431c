"""Training: what clients may ask of runs. Each returns the id of a request, which is durable by then."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from chockstone.backends.protocol import RunSpec
from chockstone.catalog import CheckpointRow
from chockstone.catalog.tables.losses import LossRow
from chockstone.engine.config import Busy
from chockstone.engine.runs.execution import LoadSource
from chockstone.engine.runs.operations import Operation, Word, request_id_of
from chockstone.engine.runs.performing import Performing
from chockstone.engine.runs.registry import RunRegistry
from chockstone.engine.runs.run import Run, RunFacts
from chockstone.engine.storage.checkpoints import SkippedCheckpointRow
from chockstone.wire.failures import BadRequest
from chockstone.wire.paths import TinkerPath, check_name


class TrainingRequests:
    def __init__(self, lifecycle: RunRegistry, performing: Performing) -> None:
        self._lifecycle = lifecycle
        self._performing = performing

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
        """Make a run, perhaps from a checkpoint; one that is there already is left as it is.

        ``skipped`` is what was walked past to find the checkpoint; the result says so.
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
        live = await self._lifecycle.make(facts)
        values: dict[str, Any] = {}
        if source is not None:
            values = {
                "source": LoadSource.of(source).to_json(),
                "with_optimizer": with_optimizer,
                "skipped": _spell(skipped),
            }
        return await self._submit(live, 0, "open", values)

    async def forward_backward(self, live: Run, seq_id: int | None, body: bytes, *, loss: LossRow | None = None) -> str:
        """``loss`` is the custom loss that the request names; it must be the run's owner's."""
        loss_id = None if loss is None else loss.loss_id
        values = {"elementwise_loss": True, "loss_id": loss_id}
        return await self._submit(live, seq_id, "pass", values, body, loss=None if loss is None else loss.definition)

    async def optim_step(self, live: Run, seq_id: int | None, params: Mapping[str, Any]) -> str:
        return await self._submit(live, seq_id, "optim_step", {"params": dict(params)})

    async def save(
        self,
        live: Run,
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
        values = {
            "path": str(path),
            "ttl_seconds": ttl_seconds,
            "overwrite": overwrite,
            "user_metadata": dict(user_metadata),
            "recipients": list(recipients),
        }
        return await self._submit(live, seq_id, "save", values)

    async def save_for_sampling(self, live: Run, seq_id: int | None, sampler_seq_id: int) -> str:
        """Open a sampling session on the run's weights as they are when the lane comes to it."""
        return await self._submit(live, seq_id, "snapshot", {"sampler_seq_id": sampler_seq_id})

    async def load(
        self,
        live: Run,
        seq_id: int | None,
        source: CheckpointRow,
        *,
        with_optimizer: bool,
        skipped: Sequence[SkippedCheckpointRow] = (),
    ) -> str:
        """``skipped`` is what was walked past to find the checkpoint; the result says so."""
        values = {
            "source": LoadSource.of(source).to_json(),
            "with_optimizer": with_optimizer,
            "skipped": _spell(skipped),
        }
        return await self._submit(live, seq_id, "load", values)

    async def close(self, live: Run) -> str:
        """Free what the run holds once its operations have ended."""
        live.is_closing = True
        try:
            return await self._submit(live, None, "close", {}, is_last=True)
        except (BadRequest, Busy):
            live.is_closing = False
            raise

    async def _submit(
        self,
        live: Run,
        seq_id: int | None,
        word: Word,
        values: Mapping[str, Any],
        body: bytes | None = None,
        *,
        loss: Mapping[str, Any] | None = None,
        is_last: bool = False,
    ) -> str:
        request_id = "" if seq_id is None else request_id_of(live.run_id, seq_id)
        operation = Operation(word, values, request_id, seq_id, body=body, loss=loss)
        return await self._performing.submit(live, seq_id, operation, is_last=is_last)


def _spell(skipped: Sequence[SkippedCheckpointRow]) -> list[dict[str, str]]:
    return [{"path": each.path, "reason": each.reason} for each in skipped]
