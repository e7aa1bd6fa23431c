"""Lives of the sampling half of a server, one after the other over one journal."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import orjson

from chockstone.engine.config import EngineLimits
from chockstone.engine.crash_suspects import CrashSuspects
from chockstone.engine.futures import Futures, Result
from chockstone.engine.journal.journal import JournalWriter
from chockstone.engine.samples.calls import RecoverWeights
from chockstone.engine.samples.journal import SampleJournal
from chockstone.engine.samples.requests import SampledTokens
from chockstone.engine.samples.sampling import SamplerSource, Sampling, Submitted
from support.engine.fake_backend import FakeBackend

SOURCE = SamplerSource("s:sample:0", "local", "tiny", "s.sample.0/ephemeral")
BASE = SamplerSource("s:sample:1", "local", "tiny", None)


async def recover_nothing(_: SamplerSource) -> bool:
    return False


@dataclass
class Life:
    sampling: Sampling
    futures: Futures
    backend: FakeBackend
    journal: SampleJournal
    directory: Path
    usage: list[SampledTokens] = field(default_factory=list)
    seconds: float = 0.0
    recover_weights: RecoverWeights = recover_nothing

    async def submit(
        self, seq_id: int | None = 0, *, source: SamplerSource = SOURCE, body: bytes = b"prompt"
    ) -> Submitted:
        return await self.sampling.submit(source, seq_id, body, num_samples=1)

    async def result(self, request_id: str) -> Result:
        promise = self.futures.get(request_id)
        assert promise is not None
        result = await promise.wait(10)
        assert result is not None, "no result in time"
        return result

    async def error(self, request_id: str) -> dict[str, str]:
        result = await self.result(request_id)
        assert result.is_failure
        error: dict[str, str] = orjson.loads(result.body)
        return error

    async def completed(self, clone: int = 0, *, source: SamplerSource = SOURCE, cursor: int = 0) -> list[str]:
        found, _ = await self.sampling.feed(source.sampling_session_id, clone).after(cursor, 0)
        return [completion.request_id for completion in found]

    def deliver(self, request_id: str) -> None:
        promise = self.futures.get(request_id)
        assert promise is not None
        self.futures.delivered(promise)

    def pass_seconds(self, seconds: float) -> None:
        self.seconds += seconds
        self.futures.tidy()

    def crashed(self, name: str) -> Path:
        """What the next server finds if this one dies now. Oldest first: they go while they are copied."""
        found = self.directory.with_name(name)
        found.mkdir()
        for segment in sorted(self.directory.iterdir()):
            with suppress(FileNotFoundError):
                shutil.copy(segment, found)
        return found


@asynccontextmanager
async def life(
    directory: Path,
    backend: FakeBackend,
    *,
    limits: EngineLimits | None = None,
    suspects: CrashSuspects | None = None,
    grace_seconds: float = 5.0,
    rotate_bytes: int = 16 << 20,
    keep_bytes: int = 128 << 20,
    now: float = 0.0,
) -> AsyncIterator[Life]:
    """A server's, until it is stopped in good order."""

    async def recover_weights(source: SamplerSource) -> bool:
        return await made.recover_weights(source)

    def count(used: SampledTokens, sequence: int | None) -> None:
        made.usage.append(used)
        if sequence is not None:
            journal.counted(sequence)

    await backend.start()
    writer = JournalWriter(synced=False)
    journal = SampleJournal(directory, writer, rotate_bytes=rotate_bytes, keep_bytes=keep_bytes, now=lambda: now)
    futures = Futures(now=lambda: made.seconds)
    sampling = Sampling(
        backend,
        futures,
        limits or EngineLimits(),
        journal,
        suspects,
        recover_weights=recover_weights,
        on_sampled=count,
    )
    made = Life(sampling, futures, backend, journal, directory)
    try:
        await sampling.recover()
        yield made
    finally:
        await sampling.stop(grace_seconds=grace_seconds)
        await writer.close()
