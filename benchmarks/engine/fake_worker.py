"""A fake worker: answers every call at once, with results of the size that real ones have.

Its recovery archives are real. It writes no archives of samplers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np

from chockstone.backends.calls import (
    EmptyReply,
    ForwardBackwardCall,
    OptimStepCall,
    ReplyT,
    WorkerCall,
    WorkerCalls,
    WorkerReply,
)
from chockstone.backends.protocol import (
    OnPieces,
    PassReply,
    SampleCall,
    SampleReply,
    SaveCall,
    SaveReply,
    StepReply,
    WorkerStatus,
)
from chockstone.checkpoints import Checkpointer

_STATE = {"weights": np.zeros(1024, np.float32)}


class FakeWorker(WorkerCalls):
    def __init__(self, checkpointer: Checkpointer, *, generation: int, result_bytes: int) -> None:
        """``checkpointer`` may be that of other fake workers, too. ``result_bytes``: of a pass."""
        self._checkpointer = checkpointer
        self._result = bytes(result_bytes)
        self.generation = generation
        self.is_ready = False
        self.trouble: str | None = None
        self.environment: dict[str, Any] = {"device": "none"}  # Any: plain JSON

    @property
    def status(self) -> WorkerStatus:
        return WorkerStatus(phase="ready" if self.is_ready else "starting", since=0.0)

    async def start(self) -> None:
        self.is_ready = True

    async def stop(self) -> None:
        self.is_ready = False

    async def ready(self) -> None:
        pass

    async def send(
        self,
        call: WorkerCall,
        reply: type[ReplyT],
        *,
        on_release: Callable[[], None] = lambda: None,
        on_pieces: OnPieces = lambda _: None,  # noqa: ARG002  # no sample is streamed
        generation: int | None = None,  # noqa: ARG002  # it does not die
    ) -> ReplyT:
        await asyncio.sleep(0)
        result = await self._answer(call, on_release)
        assert isinstance(result, reply)
        return result

    async def _answer(self, call: WorkerCall, on_release: Callable[[], None]) -> WorkerReply:
        match call:
            case ForwardBackwardCall():
                return PassReply(result=self._result, tokens=1, seconds=0.0, loss=1.0, weight=1.0)
            case OptimStepCall():
                return StepReply(metrics={})
            case SampleCall():
                return SampleReply(content=self._result, tokens=1, prompt_tokens=1)
            case SaveCall():
                on_release()
                return await asyncio.to_thread(self._write, call.archive, call.kind, dict(call.metadata))
        return EmptyReply()

    def _write(self, name: str, kind: str, metadata: dict[str, Any]) -> SaveReply:  # Any: plain JSON
        saved = self._checkpointer.save(
            _STATE, name=name, kind=kind, step=0, metadata=metadata, overwrite=True
        ).result()
        return SaveReply(size_bytes=saved.size_bytes, seal=saved.seal)
