"""The reader: verified bytes from an archive straight to where they are wanted.

A few threads do nothing but read runs of blocks into buffers; two more, one of them the caller's,
check each run and copy what lies in it to its targets while it is still in the processor's cache.
Each byte of the file is read once and copied once. Reading starts before it is known where the
bytes go, because finding that out takes time, too.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from types import TracebackType
from typing import Final, NamedTuple, Self

import numpy as np

from chockstone.checkpoints.archive import Archive
from chockstone.checkpoints.memory import Bytes, allocate
from chockstone.checkpoints.tar import PAGE, round_up

BUFFER_BYTES: Final = 32 * 1024**2  # read ahead at most; kept for the next reader

_spare: list[Bytes] = []


class Target(NamedTuple):
    """Bytes of the archive from ``offset`` on belong into ``memory``."""

    offset: int
    memory: Bytes


@dataclass(slots=True)
class _Delivery:
    wanted: Sequence[int]  # blocks
    targets: Sequence[Target]
    starts: Sequence[int]  # of the targets
    on_bytes: Callable[[int], None]
    runs: int = 0  # still to come
    error: BaseException | None = None


class Reader:
    """Reads an archive's body in the background from the moment it is made. Close it when done."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        layout = archive.layout
        self._run_blocks = max(1, archive.run_bytes // layout.block_bytes)
        self._runs = iter(_cut(range(layout.block_count), self._run_blocks))
        self._lock = threading.Lock()
        self._closed = False
        self._taken = 0  # runs handed to threads
        self._free: SimpleQueue[Bytes | None] = SimpleQueue()
        self._read: SimpleQueue[tuple[range, Bytes, BaseException | None]] = SimpleQueue()
        self._buffers = _borrow(max(archive.run_bytes, layout.block_bytes), archive.readers)
        for buffer in self._buffers:
            self._free.put(buffer)
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(archive.readers)]
        for thread in self._threads:
            thread.start()

    def deliver(self, targets: Sequence[Target], *, on_bytes: Callable[[int], None] = lambda _: None) -> None:
        """Fill every target. When it raises, some may be filled and some not."""
        ordered = sorted((target for target in targets if len(target.memory)), key=lambda target: target.offset)
        wanted = _blocks_of(self._archive, [(target.offset, len(target.memory)) for target in ordered])
        self._deliver(wanted, ordered, on_bytes)

    def verify(self, *, on_bytes: Callable[[int], None] = lambda _: None) -> None:
        """Check every block that the archive's policy asks for."""
        self._deliver(range(self._archive.layout.block_count), (), on_bytes)

    def close(self) -> None:
        self._closed = True
        for _ in self._threads:
            self._free.put(None)
        for thread in self._threads:
            thread.join()
        _give_back(self._buffers)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _work(self) -> None:
        while (buffer := self._free.get()) is not None and (run := self._take()) is not None:
            error = None
            try:
                start, end = self._range(run)
                room = min(round_up(end - start, PAGE), self._archive.size - start)
                self._archive.read_into(start, buffer[:room].data)
            except BaseException as caught:  # noqa: BLE001  # carried over to the caller
                error = caught
            self._read.put((run, buffer, error))

    def _take(self) -> range | None:
        with self._lock:
            run = None if self._closed else next(self._runs, None)
            self._taken += run is not None
            return run

    def _deliver(self, wanted: Sequence[int], targets: Sequence[Target], on_bytes: Callable[[int], None]) -> None:
        delivery = _Delivery(wanted, targets, [target.offset for target in targets], on_bytes)
        delivery.runs = self._narrow(wanted)
        helper = threading.Thread(target=self._consume, args=(delivery,), daemon=True)
        helper.start()
        self._consume(delivery)
        helper.join()
        if delivery.error is not None:
            raise delivery.error

    def _consume(self, delivery: _Delivery) -> None:
        """Check and copy runs as they come in, until none is left or one is bad."""
        while True:
            with self._lock:
                if delivery.runs == 0 or delivery.error is not None:
                    return
                delivery.runs -= 1
            run, buffer, error = self._read.get()
            try:
                if error is not None:
                    raise error
                self._hand_out(run, buffer, delivery)
            except BaseException as caught:  # noqa: BLE001  # _deliver raises it
                delivery.error = caught
            self._free.put(buffer)

    def _hand_out(self, run: range, buffer: Bytes, delivery: _Delivery) -> None:
        wanted = delivery.wanted
        needed = wanted[bisect_left(wanted, run.start) : bisect_left(wanted, run.stop)]
        if not needed:
            return  # read before it was known that nobody wants it
        start, end = self._range(run)
        self._check(needed, start, buffer)
        _copy(delivery.targets, delivery.starts, start, end, buffer)
        delivery.on_bytes(end - start)

    def _narrow(self, wanted: Sequence[int]) -> int:
        """Leave unread what nobody wants. Returns how many runs will have been read in the end."""
        with self._lock:
            ahead = self._taken * self._run_blocks
            rest = _cut(wanted[bisect_left(wanted, ahead) :], self._run_blocks)
            self._runs = iter(rest)
            return self._taken + len(rest)

    def _range(self, run: range) -> tuple[int, int]:
        layout = self._archive.layout
        return layout.block_range(run.start)[0], layout.block_range(run.stop - 1)[1]

    def _check(self, indices: Sequence[int], start: int, memory: Bytes) -> None:
        for index in indices:
            if self._archive.wants(index):
                a, b = self._archive.layout.block_range(index)
                self._archive.check_block(index, memory[a - start : b - start].data)


def verify_archive(archive: Archive, *, on_bytes: Callable[[int], None] = lambda _: None) -> int:
    """Check every block that the archive's policy asks for; returns how many. Raises on the first bad one."""
    with Reader(archive) as reader:
        reader.verify(on_bytes=on_bytes)
    return archive.blocks_verified


class FileMapping:
    """An archive seen through a mapping of its file; it lives as long as a tensor over it does."""

    def __init__(self, memory: memoryview) -> None:
        self.memory: Bytes = np.frombuffer(memory, dtype=np.uint8)

    def verify(self, archive: Archive, spans: Sequence[tuple[int, int]]) -> None:
        """Check the blocks that hold these (offset, size) spans, where they are mapped."""
        for index in _blocks_of(archive, sorted(spans)):
            if archive.wants(index):
                start, end = archive.layout.block_range(index)
                archive.check_block(index, self.memory[start:end].data)


def _blocks_of(archive: Archive, spans: Sequence[tuple[int, int]]) -> list[int]:
    """The blocks that hold these sorted spans, each once."""
    layout = archive.layout
    blocks: list[int] = []
    following = 0
    for offset, size in spans:
        first = (offset - layout.body_offset) // layout.block_bytes
        last = (offset + size - 1 - layout.body_offset) // layout.block_bytes
        blocks.extend(range(max(following, first), last + 1))
        following = max(following, last + 1)
    return blocks


def _cut(blocks: Sequence[int], longest: int) -> list[range]:
    """Runs of adjacent blocks, none longer than one read takes."""
    return list(_runs(blocks, longest))


def _runs(blocks: Sequence[int], longest: int) -> Iterator[range]:
    position = 0
    while position < len(blocks):
        first = blocks[position]
        length = 1
        while length < longest and position + length < len(blocks) and blocks[position + length] == first + length:
            length += 1
        yield range(first, first + length)
        position += length


def _copy(targets: Sequence[Target], starts: Sequence[int], start: int, end: int, memory: Bytes) -> None:
    if not targets:
        return
    index = max(0, bisect_right(starts, start) - 1)
    index = bisect_left(starts, starts[index])  # tied ones start together
    while index < len(targets) and starts[index] < end:
        offset, target = targets[index]
        a, b = max(start, offset), min(end, offset + len(target))
        if a < b:
            np.copyto(target[a - offset : b - offset], memory[a - start : b - start])
        index += 1


def _borrow(run_bytes: int, readers: int) -> list[Bytes]:
    """Buffers for one reader: as many runs as fit, and at least one more than there are threads."""
    count = max(readers + 1, BUFFER_BYTES // run_bytes)
    memory = next((_spare.pop(i) for i, spare in enumerate(_spare) if len(spare) >= count * run_bytes), None)
    memory = allocate(count * run_bytes) if memory is None else memory
    return [memory[i * run_bytes : (i + 1) * run_bytes] for i in range(count)]


def _give_back(buffers: list[Bytes]) -> None:
    memory = buffers[0].base
    if not _spare and isinstance(memory, np.ndarray):
        _spare.append(memory)
