from __future__ import annotations

import pytest

from chockstone.checkpoints.format.host_memory import HostBuffer, allocate
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
