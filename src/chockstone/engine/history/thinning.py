"""Thinning: merges older points, so that the history of a long run stays small.

The first point and the newest points stay as they are. Those between are merged with their neighbours, so that each
stands for the same number of operations, a power of two: the curve keeps its shape from the first step to the last.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain
from typing import Final

from chockstone.engine.history.points import HistoryPoint, Source, merge

MAX_POINTS: Final = 4000  # of one source in a run
EXACT_POINTS: Final = 1000  # the newest ones, which are never merged
_MERGED_POINTS: Final = 1250  # about as many remain of the older ones, and at most twice as many


def is_thinning_due(count: int) -> bool:
    """Whether a source with so many points has too many."""
    return count > MAX_POINTS


def thin(points: Iterable[HistoryPoint]) -> list[HistoryPoint]:
    """Merge the older points of each source that has too many. Points are in the order of their positions."""
    kept = [_thin(each) if is_thinning_due(len(each)) else each for each in _by_source(points).values()]
    return sorted(chain.from_iterable(kept), key=lambda point: point.position)


def _thin(points: Sequence[HistoryPoint]) -> list[HistoryPoint]:
    older = points[1:-EXACT_POINTS]
    operations = sum(point.count for point in older)
    size = 1
    while operations > size * _MERGED_POINTS:
        size *= 2
    return [points[0], *_merge_up_to(older, size), *points[-EXACT_POINTS:]]


def _merge_up_to(points: Iterable[HistoryPoint], size: int) -> Iterator[HistoryPoint]:
    """Merge neighbours as long as they stand for at most ``size`` points together."""
    together: list[HistoryPoint] = []
    total = 0
    for point in points:
        if together and total + point.count > size:
            yield _merged(together)
            together, total = [], 0
        together.append(point)
        total += point.count
    if together:
        yield _merged(together)


def _merged(points: Sequence[HistoryPoint]) -> HistoryPoint:
    return points[0] if len(points) == 1 else merge(points)


def downsample(points: Sequence[HistoryPoint], max_points: int) -> list[HistoryPoint]:
    """At most ``max_points`` points for a chart. The first and the last point of each source stay as they are."""
    if len(points) <= max_points:
        return list(points)
    sources = list(_by_source(points).values())
    share = max(2, max_points // len(sources))
    kept = chain.from_iterable(_downsample(each, share) for each in sources)
    return sorted(kept, key=lambda point: point.position)[-max_points:]


def _downsample(points: Sequence[HistoryPoint], max_points: int) -> list[HistoryPoint]:
    if len(points) <= max_points:
        return list(points)
    first, between, last = points[0], points[1:-1], points[-1]
    buckets = max_points - 2
    ends = list(accumulate(point.count for point in between))
    filled: dict[int, list[HistoryPoint]] = {}
    for point, end in zip(between, ends, strict=True):
        filled.setdefault((end - 1) * buckets // ends[-1], []).append(point)
    return [first, *(map(_merged, filled.values()) if buckets else ()), last]


def _by_source(points: Iterable[HistoryPoint]) -> dict[Source, list[HistoryPoint]]:
    found: dict[Source, list[HistoryPoint]] = {}
    for point in points:
        found.setdefault(point.source, []).append(point)
    return found
