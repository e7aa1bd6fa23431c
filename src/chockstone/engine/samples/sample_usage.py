"""Sample usage: reports the tokens of samples to the usage, as samples end, and from the journal after a crash."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from chockstone.engine.journal.journal import JournalWriter
from chockstone.engine.samples.journal import SampleJournal
from chockstone.engine.samples.requests import SampledTokens
from chockstone.engine.usage import SAMPLES, JournalPoint, UsageMeter


class SampleUsage:
    def __init__(self, meter: UsageMeter, directory: Path, writer: JournalWriter | None) -> None:
        """Without a writer no journal is kept."""
        self._meter = meter
        self.journal = None if writer is None else SampleJournal(directory, writer, usage_counted=self._counted)
        self.recovered = asyncio.Event()  # results of earlier servers are reported, or cannot be read

    def count(self, used: SampledTokens, sequence: int | None) -> None:
        """``sequence`` of the result in the journal; None: the journal does not have it.

        A result may be reported again: the catalog skips those that it has.
        """
        point = None
        if self.journal is not None and sequence is not None:
            at = datetime.fromtimestamp(used.ended_at, UTC)
            on_counted = partial(self.journal.counted, sequence)
            point = JournalPoint(SAMPLES, self.journal.birth, sequence, sequence, at, on_counted)
        self._meter.sampled(
            used.session_id,
            owner=used.owner,
            base_model=used.base_model,
            prompt_tokens=used.prompt_tokens,
            tokens=used.tokens,
            point=point,
        )

    async def _counted(self, birth: str) -> int:
        position = await self._meter.position(SAMPLES, birth)
        return 0 if position is None else position.counted
