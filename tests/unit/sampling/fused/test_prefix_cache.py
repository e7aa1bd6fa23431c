from __future__ import annotations

import gc

import numpy as np
import torch

from chockstone.sampling.adapter import Adapter
from chockstone.sampling.fused.prefix_cache import PrefixCache

BLOCK = 4
BYTES = 40  # of a block's content


def content() -> torch.Tensor:
    return torch.zeros(BYTES // 4)


def prompt(*tokens: int) -> np.ndarray:
    return np.array(tokens, np.int64)


def test_prompts_share_the_keys_of_what_they_have_in_common() -> None:
    cache, weights = PrefixCache(1000), Adapter({}, 1.0)

    one = cache.keys("ann", [weights], prompt(*range(9)), block=BLOCK)
    other = cache.keys("ann", [weights], prompt(0, 1, 2, 3, 9, 5, 6, 7), block=BLOCK)
    swapped = cache.keys("ann", [weights], prompt(4, 5, 6, 7, 0, 1, 2, 3), block=BLOCK)

    assert len(one) == len(other) == 2, "only whole blocks"
    assert one[0] == other[0] and one[1] != other[1]
    assert not set(swapped) & set(one), "a block belongs to what is before it"


def test_neither_owners_nor_weights_share_keys() -> None:
    cache, first, second = PrefixCache(1000), Adapter({}, 1.0), Adapter({}, 1.0)
    tokens = prompt(*range(4))

    keys = {
        cache.keys(owner, weights, tokens, block=BLOCK)[0]
        for owner, weights in (("ann", [first]), ("bob", [first]), ("ann", [second]), ("ann", [first, second]))
    }

    assert len(keys) == 4
    assert cache.keys("ann", [first], tokens, block=BLOCK)[0] in keys, "the same again"


def test_weights_that_are_gone_never_give_their_keys_to_others() -> None:
    cache, seen = PrefixCache(1000), set()

    for _ in range(50):  # ids of objects repeat
        (key,) = cache.keys("ann", [Adapter({}, 1.0)], prompt(*range(4)), block=BLOCK)
        assert key not in seen
        seen.add(key)
        gc.collect(0)


def test_without_a_limit_or_a_block_there_are_no_keys() -> None:
    assert PrefixCache(0).keys("ann", [], prompt(*range(8)), block=BLOCK) == []
    assert PrefixCache(1000).keys("ann", [], prompt(*range(8)), block=0) == []


def test_blocks_that_were_not_used_for_longest_are_dropped_and_the_last_of_a_prompt_first() -> None:
    cache = PrefixCache(3 * BYTES)
    for key in (b"a1", b"a2", b"b1"):
        cache.add(key, content())
    cache.touch([b"a1", b"a2"])

    cache.add(b"c1", content())
    assert b"b1" not in cache
    cache.add(b"c2", content())
    assert b"a2" not in cache and b"a1" in cache

    assert (cache.size_bytes, cache.evicted_blocks) == (3 * BYTES, 2)


def test_it_gives_memory_back_and_takes_it_again() -> None:
    cache = PrefixCache(3 * BYTES)
    for key in (b"a", b"b", b"c"):
        cache.add(key, content())

    cache.fit(BYTES)
    assert b"c" in cache and cache.size_bytes == BYTES
    cache.fit(0)
    cache.add(b"d", content())
    assert cache.size_bytes == 0 and b"d" not in cache
    cache.fit(1 << 40)
    for key in (b"e", b"f", b"g", b"h"):
        cache.add(key, content())
    assert cache.size_bytes == cache.limit_bytes == 3 * BYTES


def test_a_block_that_is_there_is_not_counted_twice() -> None:
    cache = PrefixCache(3 * BYTES)

    cache.add(b"a", content())
    cache.add(b"a", content())

    assert cache.size_bytes == BYTES
