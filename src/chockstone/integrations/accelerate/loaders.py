"""Loaders: the state of a prepared dataloader, as far as Accelerate itself continues it.

A loader counts its epochs and seeds its sampler from that count. The position inside of an epoch is known only to a
``StatefulDataLoader``; other scripts count batches and call ``accelerator.skip_first_batches``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from accelerate.data_loader import SeedableRandomSampler, get_sampler


class LoaderState:
    """The state of one prepared dataloader, to save and to restore."""

    def __init__(self, loader: Any) -> None:  # Any: DataLoaderShard, DataLoaderDispatcher or a plain DataLoader
        self._loader = loader

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = {"iteration": getattr(self._loader, "iteration", None)}
        if (sampler := self._sampler()) is not None:
            state |= {"seed": sampler.initial_seed, "epoch": sampler.epoch}
        if self._is_stateful:
            state["position"] = self._loader.state_dict()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if state["iteration"] is not None and hasattr(self._loader, "iteration"):
            self._loader.iteration = state["iteration"]
        if (sampler := self._sampler()) is not None and "seed" in state:
            sampler.initial_seed, sampler.epoch = state["seed"], state["epoch"]
        if self._is_stateful and "position" in state:
            self._loader.load_state_dict(state["position"])

    def _sampler(self) -> SeedableRandomSampler | None:
        try:
            sampler = get_sampler(self._loader)
        except AttributeError:  # a loader without a batch sampler
            return None
        return sampler if isinstance(sampler, SeedableRandomSampler) else None

    @property
    def _is_stateful(self) -> bool:
        return bool(getattr(self._loader, "use_stateful_dataloader", False))
