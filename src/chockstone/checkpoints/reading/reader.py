"""The reader: verified bytes from an archive straight to where they are wanted.

A few threads each read a run of blocks into a buffer, verify it and copy its bytes to their targets while
they are still in the processor's cache. Each byte of the file is read once and copied once. Reading starts
before the targets are known, because finding them takes time, too.
"""

from __future__ import annotations

import os
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from types import TracebackType
from typing import Final, NamedTuple, Self

import numpy as np

from chockstone.checkpoints.format.host_memory import Bytes, address_of_memory, allocate, move
from chockstone.checkpoints.format.tar import PAGE, round_up
from chockstone.checkpoints.reading.archive import Archive

BUFFER_BYTES: Final = 32 * 1024**2  # read ahead at most; kept for the next reader

_spare: list[Bytes] = []  # one at most
_spare_lock = threading.Lock()


class ReadTarget(NamedTuple):
    """``size`` bytes of the archive from ``offset`` on belong to ``address``."""

    offset: int
    size: int
    address: int
    owner: object  # of the memory at the address, which lives as long as this refers to it

    @classmethod
    def of(cls, offset: int, memory: Bytes) -> ReadTarget:
        """``memory`` is contiguous and may be written."""
        return cls(offset, memory.nbytes, address_of_memory(memory), memory)


@dataclass(slots=True)
class _Delivery:
    wanted: Sequence[int]  # blocks
    targets: Sequence[ReadTarget]
    starts: Sequence[int]  # of the targets
    on_bytes: Callable[[int], None]


@dataclass(slots=True)
class _Run:
    """A run of blocks on its way: read already if ``is_read``."""

    blocks: range
    buffer: Bytes
    is_read: bool = False


class Reader:
    """Reads an archive's body in the background from the moment it is made. Close it when done."""

    def __init__(self, archive: Archive, blocks: Sequence[int] | None = None) -> None:
        """``blocks``: those to read; None: all, because the targets are not known yet."""
        self._archive = archive
        layout = archive.layout
        self._run_blocks = max(1, archive.run_bytes // layout.block_bytes)
        self._runs = iter(_cut(range(layout.block_count) if blocks is None else blocks, self._run_blocks))
        self._ahead = 0  # the block after those that threads have taken
        self._change = threading.Condition()
        self._delivery: _Delivery | None = None
        self._error: BaseException | None = None
        self._closed = False
        self._parked: list[_Run] = []  # read before it was known where to
        self._buffers = _borrow(max(archive.run_bytes, layout.block_bytes), archive.readers)
        self._free = list(self._buffers)  # the one used last is taken first: it is still in the cache
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(archive.readers)]
        for thread in self._threads:
            thread.start()

    def deliver(self, targets: Sequence[ReadTarget], *, on_bytes: Callable[[int], None] = lambda _: None) -> None:
        """Fill every target. When it raises, some targets may be filled. Call it once."""
        ordered, wanted = _ordered(self._archive, targets)
        self.pass_on(wanted, ordered, on_bytes)

    def pass_on(self, wanted: Sequence[int], targets: Sequence[ReadTarget], on_bytes: Callable[[int], None]) -> None:
        """Verify the wanted blocks and copy their bytes to the targets. Call it once."""
        with self._change:
            self._runs = iter(_cut(wanted[bisect_left(wanted, self._ahead) :], self._run_blocks))
            self._delivery = _Delivery(wanted, targets, [target.offset for target in targets], on_bytes)
            self._change.notify_all()
        self._work()
        for thread in self._threads:
            thread.join()
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        with self._change:
            self._closed = True
            self._change.notify_all()
        for thread in self._threads:
            thread.join()
        buffers, self._buffers = self._buffers, []
        _give_back(buffers)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _work(self) -> None:
        """Read, check and copy run after run; only read, as far as there are buffers, until there is a delivery."""
        while (run := self._take()) is not None:
            try:
                if not run.is_read:
                    start, end = self._range(run.blocks)
                    room = min(round_up(end - start, PAGE), self._archive.size - start)
                    self._archive.read_into(start, run.buffer[:room].data)
                    run.is_read = True
                delivery = self._park(run)
                if delivery is not None:
                    self._hand_out(run, delivery)
            except BaseException as error:  # noqa: BLE001  # pass_on raises it
                with self._change:
                    self._error = self._error or error
                    self._change.notify_all()
                return
            if delivery is not None:
                with self._change:
                    self._free.append(run.buffer)

    def _take(self) -> _Run | None:
        """The next run to read or to deliver; None when no run is left."""
        with self._change:
            while not (self._closed or self._error):
                if self._delivery is not None and self._parked:
                    return self._parked.pop()
                if self._free and (blocks := next(self._runs, None)) is not None:
                    self._ahead = blocks.stop
                    return _Run(blocks, self._free.pop())
                if self._delivery is not None:
                    return None
                self._change.wait()
            return None

    def _park(self, run: _Run) -> _Delivery | None:
        """The delivery for a run that was read; while there is none, keep the run for it."""
        with self._change:
            if self._delivery is None:
                self._parked.append(run)
            return self._delivery

    def _hand_out(self, run: _Run, delivery: _Delivery) -> None:
        wanted, blocks = delivery.wanted, run.blocks
        needed = wanted[bisect_left(wanted, blocks.start) : bisect_left(wanted, blocks.stop)]
        if not needed:
            return  # read ahead, and no target needs it
        start, end = self._range(blocks)
        self._check(needed, start, run.buffer)
        _copy(delivery.targets, delivery.starts, start, end, run.buffer)
        delivery.on_bytes(end - start)

    def _range(self, run: range) -> tuple[int, int]:
        layout = self._archive.layout
        return layout.block_range(run.start)[0], layout.block_range(run.stop - 1)[1]

    def _check(self, indices: Sequence[int], start: int, memory: Bytes) -> None:
        for index in indices:
            if self._archive.should_verify(index):
                a, b = self._archive.layout.block_range(index)
                self._archive.check_block(index, memory[a - start : b - start].data)


def read_targets(archive: Archive, targets: Sequence[ReadTarget]) -> None:
    """Fill every target, reading no block that holds none of them."""
    ordered, wanted = _ordered(archive, targets)
    with Reader(archive, wanted) as reader:
        reader.pass_on(wanted, ordered, lambda _: None)


def verify_archive(archive: Archive, *, on_bytes: Callable[[int], None] = lambda _: None) -> int:
    """Check every block that the archive's policy asks for; returns how many. Raises on the first bad one."""
    layout = archive.layout
    wanted = [index for index in range(layout.block_count) if archive.should_verify(index)]
    with Reader(archive, wanted) as reader:
        reader.pass_on(wanted, (), on_bytes)
    if skipped := layout.body_end - layout.body_offset - sum(b - a for a, b in map(layout.block_range, wanted)):
        on_bytes(skipped)
    return archive.blocks_verified


class FileMapping:
    """An archive seen through a mapping of its file; it lives as long as a tensor over it does."""

    def __init__(self, memory: memoryview) -> None:
        self.memory: Bytes = np.frombuffer(memory, dtype=np.uint8)

    def verify(self, archive: Archive, spans: Sequence[tuple[int, int]]) -> None:
        """Check the blocks that hold these (offset, size) spans, where they are mapped."""
        for index in _blocks_of(archive, spans):
            if archive.should_verify(index):
                start, end = archive.layout.block_range(index)
                archive.check_block(index, self.memory[start:end].data)


def _ordered(archive: Archive, targets: Sequence[ReadTarget]) -> tuple[list[ReadTarget], list[int]]:
    """The targets in file order, and the blocks that hold them."""
    ordered = sorted([target for target in targets if target.size], key=itemgetter(0))
    return ordered, _blocks_of(archive, [target[:2] for target in ordered])


def _blocks_of(archive: Archive, spans: Sequence[tuple[int, int]]) -> list[int]:
    """The blocks that hold these (offset, size) spans, each once and in order."""
    layout = archive.layout
    numbers = np.array(spans, dtype=np.int64).reshape(-1, 2)
    firsts = (numbers[:, 0] - layout.body_offset) // layout.block_bytes
    lasts = (numbers[:, 0] + numbers[:, 1] - 1 - layout.body_offset) // layout.block_bytes
    changes = np.bincount(firsts, minlength=layout.block_count + 1).astype(np.int64)
    changes -= np.bincount(lasts + 1, minlength=layout.block_count + 1)
    blocks: list[int] = np.flatnonzero(np.cumsum(changes)).tolist()
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


def _copy(targets: Sequence[ReadTarget], starts: Sequence[int], start: int, end: int, memory: Bytes) -> None:
    if not targets:
        return
    first = max(0, bisect_right(starts, start) - 1)
    first = bisect_left(starts, starts[first])  # tied ones start together
    base = address_of_memory(memory) - start
    for offset, size, address, _ in targets[first : bisect_left(starts, end)]:
        if start <= offset and offset + size <= end:
            move(address, base + offset, size)
            continue
        a, b = max(start, offset), min(end, offset + size)
        if a < b:
            move(address + a - offset, base + a, b - a)


def _borrow(run_bytes: int, readers: int) -> list[Bytes]:
    """Buffers for one reader: as many runs as fit, and at least one more than there are threads."""
    count = max(readers + 1, BUFFER_BYTES // run_bytes)
    with _spare_lock:
        memory = _spare.pop() if _spare and len(_spare[0]) >= count * run_bytes else None
    memory = allocate(count * run_bytes) if memory is None else memory
    return [memory[i * run_bytes : (i + 1) * run_bytes] for i in range(count)]


def _give_back(buffers: list[Bytes]) -> None:
    memory = buffers[0].base if buffers else None
    with _spare_lock:
        if not _spare and isinstance(memory, np.ndarray) and len(memory) <= BUFFER_BYTES:
            _spare.append(memory)


os.register_at_fork(after_in_child=_spare.clear)
