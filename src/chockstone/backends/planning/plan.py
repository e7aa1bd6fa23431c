"""Memory plans: what a base model and its runs take of a device, and how long a context and how many runs fit.

Numbers only. ``fixed`` parts are there as long as the model or the run is; a pass takes its part while it is computed,
and one pass is computed at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from chockstone.backends.run_spec import Recomputed
from chockstone.backends.training.activations import SHARE
from chockstone.backends.training.micro_batches import TOKENS_ON_GPU
from chockstone.backends.training.optimizers import MOMENTS

_TRIES: Final = 4  # of contexts, until the longest is known well enough
_CAUTION: Final = 0.995  # of a straight line
NUMBER_BYTES: Final = 4  # of trained weights, gradients and moments, which are float32
RUNTIME_BYTES: Final = 600 * 10**6  # what CUDA and torch take before the first tensor
CACHE_BYTES: Final = (2 << 30) * 5 // 4  # limit of the sampler's KV cache, its reserve included

PassBytes = Callable[[int, int, Recomputed], int]  # sequences, tokens of each, layers that recompute → peak of the pass


@dataclass(frozen=True, slots=True, kw_only=True)
class RunMemory:
    """What one run takes, besides its passes."""

    weights_bytes: int
    gradient_bytes: int
    moments_bytes: int

    @classmethod
    def of(cls, parameters: int, optimizer: str) -> RunMemory:
        size_bytes = NUMBER_BYTES * parameters
        return cls(
            weights_bytes=size_bytes, gradient_bytes=size_bytes, moments_bytes=size_bytes * len(MOMENTS[optimizer])
        )

    @property
    def total_bytes(self) -> int:
        return self.weights_bytes + self.gradient_bytes + self.moments_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedPass:
    """The largest micro-batch of a pass over datums of ``context`` tokens."""

    context: int
    sequences: int
    recomputes: bool  # layers compute their activations again in the backward pass
    peak_bytes: int

    @property
    def tokens(self) -> int:
        return self.context * self.sequences


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """``device_bytes`` is what there is. All other parts are what is needed of it."""

    device_bytes: int
    base_bytes: int
    run: RunMemory
    runs: int
    cache_bytes: int
    runtime_bytes: int
    tokens_per_micro_batch: int  # that the passes are computed with
    largest_pass: PlannedPass
    longest_context: int  # that fits beside so many runs; 0: none
    most_runs: int  # that fit with passes of this context

    @property
    def fixed_bytes(self) -> int:
        return self.base_bytes + self.runs * self.run.total_bytes + self.cache_bytes + self.runtime_bytes

    @property
    def total_bytes(self) -> int:
        return self.fixed_bytes + self.largest_pass.peak_bytes

    @property
    def fits(self) -> bool:
        return self.total_bytes <= self.device_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Planner:
    """Makes plans for one model on one device."""

    device_bytes: int
    base_bytes: int
    run: RunMemory
    pass_bytes: PassBytes
    max_context: int  # of the model
    cache_bytes: int = CACHE_BYTES
    runtime_bytes: int = 0
    default_tokens: int = TOKENS_ON_GPU  # per micro-batch

    def plan(self, *, context: int, runs: int = 1) -> MemoryPlan:
        fixed = self._fixed(runs)
        tokens = self.default_tokens
        largest = self._choose(context, tokens, self.device_bytes - fixed)
        while largest.peak_bytes > self.device_bytes - fixed and largest.sequences > 1:
            tokens = largest.tokens // 2  # as the worker does when it runs out of memory
            largest = self._choose(context, tokens, self.device_bytes - fixed)
        left = self.device_bytes - self._fixed(0) - largest.peak_bytes
        return MemoryPlan(
            device_bytes=self.device_bytes,
            base_bytes=self.base_bytes,
            run=self.run,
            runs=runs,
            cache_bytes=self.cache_bytes,
            runtime_bytes=self.runtime_bytes,
            tokens_per_micro_batch=tokens,
            largest_pass=largest,
            longest_context=self._longest_context(self.device_bytes - fixed),
            most_runs=max(0, left // self.run.total_bytes),
        )

    def _fixed(self, runs: int) -> int:
        return self.base_bytes + runs * self.run.total_bytes + self.cache_bytes + self.runtime_bytes

    def _choose(self, context: int, tokens: int, free_bytes: int) -> PlannedPass:
        """Layers recompute where their activations would take much of what is free, as in training.

        Training may let the last layers keep theirs, if that fits; the plan counts what a pass takes at least.
        """
        kept = self._pass(context, tokens, recomputes=False)
        return kept if kept.peak_bytes <= SHARE * free_bytes else self._pass(context, tokens, recomputes=True)

    def _pass(self, context: int, tokens: int, *, recomputes: bool) -> PlannedPass:
        sequences = max(1, tokens // context)
        peak_bytes = self.pass_bytes(sequences, context, "all" if recomputes else "none")
        return PlannedPass(context=context, sequences=sequences, recomputes=recomputes, peak_bytes=peak_bytes)

    def _longest_context(self, free_bytes: int) -> int:
        """Between one that fits and one that does not, where a straight line between them says; each is tried."""
        low, at_low = 1, self.pass_bytes(1, 1, "all")
        high, at_high = self.max_context, self.pass_bytes(1, self.max_context, "all")
        if at_high <= free_bytes:
            return high
        if at_low > free_bytes:
            return 0
        for _ in range(_TRIES):
            share = (free_bytes - at_low) / (at_high - at_low)
            middle = low + min(high - low - 1, max(1, int((high - low) * share * _CAUTION)))
            if middle in (low, high):
                break
            at_middle = self.pass_bytes(1, middle, "all")
            if at_middle <= free_bytes:
                low, at_low = middle, at_middle
            else:
                high, at_high = middle, at_middle
        return low
