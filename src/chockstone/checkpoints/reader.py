"""The reader: verified bytes from an archive straight to where they are wanted.

Threads read runs of blocks into a small buffer of their own, check each block, and copy what lies
in it to its targets. Each byte of the file is read once and copied once.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from chockstone.checkpoints.archive import Archive
from chockstone.checkpoints.memory import Bytes, allocate
from chockstone.checkpoints.prefetch import Prefetch
from chockstone.checkpoints.tar import PAGE, round_up

THREADS: Final = 4  # while some wait for the disk, others check and copy


@dataclass(frozen=True, slots=True)
class Target:
    """Bytes of the archive from ``offset`` on belong into ``memory``."""

    offset: int
    memory: Bytes


def read_targets(
    archive: Archive,
    targets: Sequence[Target],
    *,
    prefetch: Prefetch | None = None,
    on_bytes: Callable[[int], None] = lambda _: None,
) -> None:
    """Fill every target. When it raises, some may be filled and some not."""
    ordered = sorted((target for target in targets if len(target.memory)), key=lambda target: target.offset)
    spans = [(target.offset, len(target.memory)) for target in ordered]
    _Reading(archive, spans, ordered, prefetch, on_bytes).run()


def verify_spans(
    archive: Archive,
    spans: Sequence[tuple[int, int]],
    mapping: FileMapping,
    *,
    on_bytes: Callable[[int], None] = lambda _: None,
) -> None:
    """Check the blocks that hold these (offset, size) spans, where they are mapped."""
    _Reading(archive, sorted(spans), (), mapping, on_bytes).run()


class FileMapping:
    """An archive seen through a mapping of its file; it lives as long as a tensor over it does."""

    def __init__(self, memory: memoryview) -> None:
        self.memory = np.frombuffer(memory, dtype=np.uint8)

    def view(self, start: int, end: int) -> Bytes | None:
        return self.memory[start:end]


class _Front(Protocol):
    """Bytes that need not be read any more."""

    def view(self, start: int, end: int) -> Bytes | None: ...


def _runs(archive: Archive, spans: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Block ranges that hold the spans, cut to what one read takes."""
    layout = archive.layout
    longest = max(1, archive.run_bytes // layout.block_bytes)
    covered = 0
    for offset, size in spans:
        first = max(covered, (offset - layout.body_offset) // layout.block_bytes)
        last = (offset + size - 1 - layout.body_offset) // layout.block_bytes
        for start in range(first, last + 1, longest):
            covered = min(start + longest, last + 1)
            yield start, covered


class _Reading:
    def __init__(
        self,
        archive: Archive,
        spans: Sequence[tuple[int, int]],
        targets: Sequence[Target],
        front: _Front | None,
        on_bytes: Callable[[int], None],
    ) -> None:
        runs = list(_runs(archive, spans))
        self._archive = archive
        self._targets = targets
        self._starts = [target.offset for target in targets]
        self._runs = iter(runs)
        self._threads = min(THREADS, len(runs))
        self._front = front
        self._on_bytes = on_bytes
        self._lock = threading.Lock()
        self._error: BaseException | None = None

    def run(self) -> None:
        helpers = [threading.Thread(target=self._work, daemon=True) for _ in range(self._threads - 1)]
        for helper in helpers:
            helper.start()
        self._work()
        for helper in helpers:
            helper.join()
        if self._error is not None:
            raise self._error

    def _work(self) -> None:
        try:
            layout = self._archive.layout
            spare: Bytes | None = None
            while (run := self._take()) is not None:
                start, end = layout.block_range(run[0])[0], layout.block_range(run[1] - 1)[1]
                memory = self._front.view(start, end) if self._front else None
                if memory is None:
                    memory = spare = (
                        allocate(max(self._archive.run_bytes, layout.block_bytes)) if spare is None else spare
                    )
                    room = min(round_up(end - start, PAGE), layout.size - start)
                    self._archive.read_into(start, memory[:room].data)
                self._check(run, start, memory)
                self._copy(start, end, memory)
                self._on_bytes(end - start)
        except BaseException as error:  # noqa: BLE001  # recorded; run() raises it
            self._error = self._error or error

    def _take(self) -> tuple[int, int] | None:
        with self._lock:
            return None if self._error is not None else next(self._runs, None)

    def _check(self, run: tuple[int, int], start: int, memory: Bytes) -> None:
        for index in range(*run):
            if self._archive.wants(index):
                a, b = self._archive.layout.block_range(index)
                self._archive.check_block(index, memory[a - start : b - start].data)

    def _copy(self, start: int, end: int, memory: Bytes) -> None:
        index = max(0, bisect_right(self._starts, start) - 1)
        index = bisect_left(self._starts, self._starts[index]) if self._starts else 0  # tied ones start together
        while index < len(self._targets) and self._starts[index] < end:
            target = self._targets[index]
            a, b = max(start, target.offset), min(end, target.offset + len(target.memory))
            if a < b:
                np.copyto(target.memory[a - target.offset : b - target.offset], memory[a - start : b - start])
            index += 1
