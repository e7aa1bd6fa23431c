from __future__ import annotations

import math
import random

import numpy as np
import pytest

from chockstone.checkpoints.format.byte_runs import ByteRun, ByteRuns, box_runs, spread
from chockstone.checkpoints.format.shards import Box


def random_box(chance: random.Random) -> tuple[tuple[int, ...], Box]:
    shape = tuple(chance.randint(1, 5) for _ in range(chance.randint(0, 4)))
    offsets, sizes = [], []
    for extent in shape:
        first = chance.randint(0, extent - 1)
        offsets.append(first)
        sizes.append(chance.randint(1, extent - first))
    return shape, Box(tuple(offsets), tuple(sizes))


def bytes_of(shape: tuple[int, ...], box: Box, itemsize: int) -> list[int]:
    """Every byte of a box by its offset in the tensor, row by row."""
    numbers = np.arange(math.prod(shape) * itemsize).reshape(*shape, itemsize)
    chosen = tuple(slice(at, at + size) for at, size in zip(*box, strict=True))
    return [int(number) for number in numbers[chosen].reshape(-1)]


def bytes_in(runs: list[ByteRun]) -> list[int]:
    return [run.start + row * run.stride + at for run in runs for row in range(run.times) for at in range(run.length)]


@pytest.mark.parametrize("seed", range(60))
def test_runs_of_a_box_are_its_bytes_in_their_order(seed: int) -> None:
    shape, box = random_box(random.Random(seed))

    assert bytes_in(box_runs(shape, box, 2)) == bytes_of(shape, box, 2)


@pytest.mark.parametrize("dimension", range(3))
def test_a_division_along_one_dimension_is_one_run(dimension: int) -> None:
    shape = (4, 6, 8)
    sizes = tuple(extent // 2 if i == dimension else extent for i, extent in enumerate(shape))

    assert len(box_runs(shape, Box((0, 0, 0), sizes), 4)) == 1


def test_an_empty_box_has_no_runs() -> None:
    assert box_runs((4, 4), Box((4, 0), (0, 4)), 4) == []


@pytest.mark.parametrize("seed", range(40))
def test_what_lies_in_a_range_is_found_with_its_place_in_the_stream(seed: int) -> None:
    chance = random.Random(seed)
    found, base = [], 0
    for _ in range(chance.randint(0, 4)):
        shape, box = random_box(chance)
        found += [run._replace(start=run.start + base) for run in box_runs(shape, box, 2)]
        base += 2 * math.prod(shape) + chance.randint(0, 3)
    runs, stream = ByteRuns.of(found), bytes_in(found)
    start, end = sorted((chance.randint(0, base + 2), chance.randint(0, base + 2)))

    cuts = list(runs.within(start, end))

    assert bytes_in([cut.run for cut in cuts]) == [at for at in stream if start <= at < end]
    assert [cut.position for cut in cuts] == [stream.index(cut.run.start) for cut in cuts]
    assert runs.before(np.array([start, end])).tolist() == [sum(at < x for at in stream) for x in (start, end)]
    assert runs.size == len(stream)


def test_rows_are_spread_out_in_order() -> None:
    cuts = list(ByteRuns.of([ByteRun(0, 2, 5, 3), ByteRun(20, 4, 4, 1)]).within(0, 100))

    starts, lengths = spread(cuts)

    assert starts.tolist() == [0, 5, 10, 20]
    assert lengths.tolist() == [2, 2, 2, 4]
