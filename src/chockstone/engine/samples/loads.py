"""Loads: what each sampler has to do and has done since the server started, for operators."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from chockstone.engine.samples.requests import SampledTokens

_KEPT: Final = 10_000  # samplers; those that were not used for longest are forgotten


@dataclass(frozen=True, slots=True)
class SamplerQueue:
    queued: int = 0  # requests that wait to be sent to the worker
    running: int = 0  # requests that the worker has


@dataclass(frozen=True, slots=True)
class SamplerUse:
    """Of requests that have ended, also as failures."""

    requests: int = 0
    prompt_tokens: int = 0
    tokens: int = 0  # that were generated
    last_used_at: datetime | None = None


class SamplerUses:
    def __init__(self, *, kept: int = _KEPT) -> None:
        self._kept = kept
        self._uses: OrderedDict[str, SamplerUse] = OrderedDict()  # by sampling session, the last used last

    def note(self, sampling_session_id: str, used: SampledTokens | None, *, at: datetime) -> None:
        """A request has ended. ``used``: None of one that failed."""
        before = self.get(sampling_session_id)
        self._uses[sampling_session_id] = SamplerUse(
            before.requests + 1,
            before.prompt_tokens + (0 if used is None else used.prompt_tokens),
            before.tokens + (0 if used is None else used.tokens),
            at,
        )
        self._uses.move_to_end(sampling_session_id)
        if len(self._uses) > self._kept:
            self._uses.popitem(last=False)

    def get(self, sampling_session_id: str) -> SamplerUse:
        return self._uses.get(sampling_session_id, SamplerUse())
