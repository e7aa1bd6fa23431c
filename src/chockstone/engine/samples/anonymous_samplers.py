"""Anonymous samplers: weights that clients sample from without having saved them under a name.

A training loop makes one every few steps and rarely uses an old one. A run keeps its newest few and those that were
used lately; the others are freed long before their session ends. Those of an earlier server are not known here; they
are freed with their session.
"""

from __future__ import annotations

from collections.abc import Callable

from chockstone.engine.config import EngineLimits


class AnonymousSamplers:
    def __init__(self, limits: EngineLimits, *, monotonic: Callable[[], float]) -> None:
        self._limits = limits
        self._monotonic = monotonic
        self._used_at: dict[str, dict[str, float]] = {}  # by run and sampling session, in the order they were made
        self._run_of: dict[str, str] = {}

    def made(self, run_id: str, sampling_session_id: str) -> None:
        self._run_of[sampling_session_id] = run_id
        self._used_at.setdefault(run_id, {})[sampling_session_id] = self._monotonic()

    def used(self, sampling_session_id: str) -> None:
        """A client samples from it, if it is one of these at all."""
        if (run_id := self._run_of.get(sampling_session_id)) is not None:
            self._used_at[run_id][sampling_session_id] = self._monotonic()

    def take_left_behind(self) -> list[str]:
        """The sampling sessions whose weights may be deleted; each is returned once."""
        horizon = self._monotonic() - self._limits.anonymous_idle_seconds
        left: list[str] = []
        for used_at in self._used_at.values():
            older = list(used_at)[: -self._limits.anonymous_samplers]
            left += [sampler_id for sampler_id in older if used_at[sampler_id] < horizon]
        self.forget(left)
        return left

    def forget(self, sampling_session_ids: list[str]) -> None:
        for sampler_id in sampling_session_ids:
            if (run_id := self._run_of.pop(sampler_id, None)) is None:
                continue
            del self._used_at[run_id][sampler_id]
            if not self._used_at[run_id]:
                del self._used_at[run_id]
