from __future__ import annotations

import pytest
import torch

from chockstone.sampling.adapter import Adapter, AdapterCache, LowRank


def make_adapter(size: int) -> Adapter:
    """Of ``size`` bytes."""
    return Adapter({"layer": LowRank(torch.zeros(1, size // 8), torch.zeros(size // 8, 1))}, scale=1.0)


def test_an_adapter_is_prepared_once_while_it_is_cached() -> None:
    prepared: list[Adapter] = []

    def prepare(adapter: Adapter) -> int:
        prepared.append(adapter)
        return len(prepared)

    cache = AdapterCache(prepare)
    first, second = make_adapter(80), make_adapter(80)

    numbers = [cache.get(adapter) for adapter in (first, second, first, second)]

    assert numbers == [1, 2, 1, 2]


def test_the_least_recently_used_adapter_is_evicted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chockstone.sampling.adapter._KEPT_BYTES", 200)
    prepared: list[Adapter] = []
    cache = AdapterCache(prepared.append)
    first, second, third = (make_adapter(80) for _ in range(3))

    for adapter in (first, second, first, third, first, second):
        cache.get(adapter)

    assert prepared == [first, second, third, second]


def test_an_adapter_larger_than_the_cache_is_kept_until_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chockstone.sampling.adapter._KEPT_BYTES", 10)
    prepared: list[Adapter] = []
    cache, large = AdapterCache(prepared.append), make_adapter(80)

    cache.get(large)
    cache.get(large)

    assert prepared == [large]
