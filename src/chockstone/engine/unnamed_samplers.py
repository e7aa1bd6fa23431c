"""Unnamed samplers: weights that clients sample from without having named them.

A training loop makes one every few steps and seldom looks back. A run keeps its newest few and
those that were sampled from lately; the others are left behind, long before their session ends.
What an earlier life of the server made is not known here, and goes with its session.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from chockstone.engine.limits import Limits


@dataclass(slots=True)
class _Run:
    used_at: dict[str, float] = field(default_factory=dict)  # by sampling session, in the order they were made


class UnnamedSamplers:
    def __init__(self, limits: Limits, *, monotonic: Callable[[], float]) -> None:
        self._limits = limits
        self._monotonic = monotonic
        self._runs: dict[str, _Run] = {}
        self._run_of: dict[str, str] = {}

    def made(self, run_id: str, sampling_session_id: str) -> None:
        self._run_of[sampling_session_id] = run_id
        self._runs.setdefault(run_id, _Run()).used_at[sampling_session_id] = self._monotonic()

    def used(self, sampling_session_id: str) -> None:
        """Somebody samples from it, if it is one of these at all."""
        if (run_id := self._run_of.get(sampling_session_id)) is not None:
            self._runs[run_id].used_at[sampling_session_id] = self._monotonic()

    def take_left_behind(self) -> list[str]:
        """The sampling sessions whose weights may go; told once."""
        horizon = self._monotonic() - self._limits.unnamed_idle_seconds
        left: list[str] = []
        for run in self._runs.values():
            older = list(run.used_at)[: -self._limits.unnamed_samplers]
            left += [sampler_id for sampler_id in older if run.used_at[sampler_id] < horizon]
        self.forget(left)
        return left

    def forget(self, sampling_session_ids: list[str]) -> None:
        for sampler_id in sampling_session_ids:
            if (run_id := self._run_of.pop(sampler_id, None)) is None:
                continue
            run = self._runs[run_id]
            del run.used_at[sampler_id]
            if not run.used_at:
                del self._runs[run_id]
