from __future__ import annotations

from typing import Any, cast

import pytest
import torch

from chockstone.backends.worker import sampler_weights
from chockstone.backends.worker.sampler_weights import Weights, WeightsCache, packable_bytes


def weights(size_bytes: int = 10) -> Weights:
    return Weights(cast("Any", None), None, size_bytes)  # Any: a model that nobody runs


def cache_of(limit_bytes: int, *archives: str) -> WeightsCache:
    cache = WeightsCache(limit_bytes)
    for archive in archives:
        cache.put(archive, weights(), is_durable=True)
    return cache


def there(cache: WeightsCache, *archives: str) -> list[str]:
    return [archive for archive in archives if cache.get(archive) is not None]


@pytest.mark.parametrize(("free_bytes", "packable"), [(None, 0), (400, 100), (1 << 40, 1 << 30)])
def test_packed_copies_take_at_most_a_quarter_of_the_free_memory(
    monkeypatch: pytest.MonkeyPatch, free_bytes: int | None, packable: int
) -> None:
    monkeypatch.setattr(sampler_weights, "available_bytes", lambda _: free_bytes)

    assert packable_bytes(torch.device("cpu")) == packable
    assert packable_bytes(torch.device("cuda")) == 0


def test_weights_are_found_by_their_archive() -> None:
    cache = WeightsCache(100)
    mine = weights()
    cache.put("a", mine, is_durable=True)

    assert cache.get("a") is mine
    assert cache.get("b") is None


def test_those_not_used_for_longest_make_room() -> None:
    cache = cache_of(30, "a", "b", "c")
    cache.get("a")

    cache.put("d", weights(), is_durable=True)

    assert there(cache, "a", "b", "c", "d") == ["a", "c", "d"]


def test_as_many_make_room_as_are_needed() -> None:
    cache = cache_of(30, "a", "b", "c")

    cache.put("d", weights(25), is_durable=True)

    assert there(cache, "a", "b", "c", "d") == ["d"]


def test_weights_larger_than_the_shelf_stay_until_others_come() -> None:
    cache = cache_of(30)
    cache.put("large", weights(1000), is_durable=True)
    assert there(cache, "large") == ["large"]

    cache.put("a", weights(), is_durable=True)

    assert there(cache, "large", "a") == ["a"]


def test_weights_that_are_not_on_disk_stay() -> None:
    cache = cache_of(30)
    cache.put("only here", weights(30), is_durable=False)

    cache.put("a", weights(), is_durable=True)
    cache.put("b", weights(), is_durable=True)

    assert there(cache, "only here", "a", "b") == ["only here", "b"]


def test_weights_that_came_to_disk_may_go() -> None:
    cache = cache_of(30)
    cache.put("saved", weights(30), is_durable=False)
    cache.put("a", weights(), is_durable=True)

    cache.saved("saved")

    assert there(cache, "saved", "a") == ["a"]


def test_weights_that_came_to_disk_stay_while_there_is_room() -> None:
    cache = cache_of(30)
    cache.put("saved", weights(30), is_durable=False)

    cache.saved("saved")

    assert there(cache, "saved") == ["saved"]


@pytest.mark.parametrize("is_durable", [True, False])
def test_forgotten_weights_are_gone_and_their_room_is_free(is_durable: bool) -> None:
    cache = cache_of(20, "a")
    cache.put("b", weights(), is_durable=is_durable)

    cache.forget("b")
    cache.forget("b")
    cache.saved("b")
    cache.put("c", weights(), is_durable=True)

    assert there(cache, "a", "b", "c") == ["a", "c"]


def test_the_same_archive_put_again_counts_once() -> None:
    cache = cache_of(30, "a", "b", "a", "a")
    cache.put("c", weights(), is_durable=True)

    assert there(cache, "a", "b", "c") == ["a", "b", "c"]
