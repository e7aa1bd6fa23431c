from __future__ import annotations

import numpy as np
import pytest

from chockstone.checkpoints.format.host_memory import HostBuffer, address_of_memory, allocate, move
from chockstone.checkpoints.format.tar import PAGE


@pytest.mark.parametrize("size", [0, 1, PAGE, PAGE + 1, 5 * 1024**2])
def test_memory_is_zeroed_and_stands_on_whole_pages(size: int) -> None:
    memory = allocate(size)

    assert len(memory) == max(-(-size // PAGE) * PAGE, PAGE)
    assert memory.ctypes.data % PAGE == 0
    assert not memory.any()


def test_a_buffer_is_kept_until_a_larger_one_is_needed() -> None:
    buffer = HostBuffer()

    first = buffer.reserve(3 * PAGE)
    again = buffer.reserve(PAGE)
    generation = buffer.generation
    larger = buffer.reserve(4 * PAGE)

    assert again.ctypes.data == first.ctypes.data
    assert generation == 1
    assert (len(larger), buffer.generation) == (4 * PAGE, 2)


@pytest.mark.parametrize("size", [0, 1, 64 * 1024 - 1, 64 * 1024, 3 * 1024**2])
def test_a_move_copies_that_many_bytes_and_no_more(size: int) -> None:
    source = np.random.default_rng(3).integers(1, 256, size + 2, dtype=np.uint8)
    target = np.zeros_like(source)

    move(address_of_memory(target) + 1, address_of_memory(source) + 1, size)

    assert np.array_equal(target[1:-1], source[1:-1])
    assert target[0] == target[-1] == 0
