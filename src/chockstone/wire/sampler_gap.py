"""Sampler gaps: how far the log-probabilities of a vLLM server are from the exact ones, for the same weights.

Imports no numpy: the engine and the worker protocol use this file.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerGap:
    """What a probe found. ``mean`` and ``largest`` are absolute differences in nats, over ``tokens`` tokens.

    Either both are there, or ``trouble`` says why the gap could not be measured.
    """

    server: str  # URL of the vLLM server
    base_model: str
    archive: str | None = None  # of the weights; None: the base model itself
    mean: float | None = None
    largest: float | None = None
    tokens: int = 0
    trouble: str | None = None
    was_asked: bool = True  # False: the server could not be asked, and what was known of it holds

    def is_within(self, limit: float | None) -> bool:
        """Whether the mean was measured and is at most ``limit``; None: no limit."""
        return self.mean is not None and (limit is None or self.mean <= limit)
