from __future__ import annotations

from typing import Any, cast

import pytest

from chockstone.backends.worker.sampler_weights import Weights
from chockstone.backends.worker.weights_cache import WeightsCache


def weights(size_bytes: int = 10) -> Weights:
    return Weights(cast("Any", None), None, size_bytes)  # Any: a model that nobody runs


def shelf_of(limit_bytes: int, *archives: str) -> WeightsCache:
    shelf = WeightsCache(limit_bytes)
    for archive in archives:
        shelf.put(archive, weights(), is_durable=True)
    return shelf


def there(shelf: WeightsCache, *archives: str) -> list[str]:
    return [archive for archive in archives if shelf.get(archive) is not None]


def test_weights_are_found_by_their_archive() -> None:
    shelf = WeightsCache(100)
    mine = weights()
    shelf.put("a", mine, is_durable=True)

    assert shelf.get("a") is mine
    assert shelf.get("b") is None


def test_those_not_used_for_longest_make_room() -> None:
    shelf = shelf_of(30, "a", "b", "c")
    shelf.get("a")

    shelf.put("d", weights(), is_durable=True)

    assert there(shelf, "a", "b", "c", "d") == ["a", "c", "d"]


def test_as_many_make_room_as_are_needed() -> None:
    shelf = shelf_of(30, "a", "b", "c")

    shelf.put("d", weights(25), is_durable=True)

    assert there(shelf, "a", "b", "c", "d") == ["d"]


def test_weights_larger_than_the_shelf_stay_until_others_come() -> None:
    shelf = shelf_of(30)
    shelf.put("large", weights(1000), is_durable=True)
    assert there(shelf, "large") == ["large"]

    shelf.put("a", weights(), is_durable=True)

    assert there(shelf, "large", "a") == ["a"]


def test_weights_that_are_not_on_disk_stay() -> None:
    shelf = shelf_of(30)
    shelf.put("only here", weights(30), is_durable=False)

    shelf.put("a", weights(), is_durable=True)
    shelf.put("b", weights(), is_durable=True)

    assert there(shelf, "only here", "a", "b") == ["only here", "b"]


def test_weights_that_came_to_disk_may_go() -> None:
    shelf = shelf_of(30)
    shelf.put("saved", weights(30), is_durable=False)
    shelf.put("a", weights(), is_durable=True)

    shelf.settled("saved")

    assert there(shelf, "saved", "a") == ["a"]


def test_weights_that_came_to_disk_stay_while_there_is_room() -> None:
    shelf = shelf_of(30)
    shelf.put("saved", weights(30), is_durable=False)

    shelf.settled("saved")

    assert there(shelf, "saved") == ["saved"]


@pytest.mark.parametrize("is_durable", [True, False])
def test_forgotten_weights_are_gone_and_their_room_is_free(is_durable: bool) -> None:
    shelf = shelf_of(20, "a")
    shelf.put("b", weights(), is_durable=is_durable)

    shelf.forget("b")
    shelf.forget("b")
    shelf.settled("b")
    shelf.put("c", weights(), is_durable=True)

    assert there(shelf, "a", "b", "c") == ["a", "c"]


def test_the_same_archive_put_again_counts_once() -> None:
    shelf = shelf_of(30, "a", "b", "a", "a")
    shelf.put("c", weights(), is_durable=True)

    assert there(shelf, "a", "b", "c") == ["a", "b", "c"]
