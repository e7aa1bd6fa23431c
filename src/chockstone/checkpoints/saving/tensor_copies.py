"""Tensor copies: from live tensors into the memory of a snapshot, by plain threads.

torch divides each tensor among the threads of OpenMP, which spin while they wait for each other at the end of every
tensor. Where other programs use the cores, many small tensors take seconds instead of milliseconds that way. Here each
thread takes the next piece when it has finished one, and the caller waits for no thread that has not begun. Tensors of
less than 32 KiB, which torch does not divide, are left to torch.
"""

from __future__ import annotations

import _thread
import math
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from typing import Any, Final, NamedTuple

import numpy as np

from chockstone.checkpoints.errors import SaveAbandoned
from chockstone.checkpoints.format.host_memory import LONG_BYTES, Bytes, address_of_memory, move

MemoryMove = tuple[int, int, int]  # target, source, size: a plain tuple, because a state has one for each tensor
_Piece = tuple[Sequence[MemoryMove], int, int]  # with the target address of its first move, and of the next piece's

_MOST_THREADS: Final = 8  # as many as the memory of most machines keeps busy
_PIECE_BYTES: Final = 8 * 1024**2  # that a thread takes at once
_SMALL_BYTES: Final = 32 * 1024  # torch copies smaller tensors, many in a call, and never uses OpenMP for them
_BATCH: Final = 64  # tensors that torch copies in one call


class Place(NamedTuple):
    """Where a tensor goes: its bytes stand in the memory from ``start`` on."""

    start: int
    shape: tuple[int, ...]
    size: int


class TensorCopies:
    """Copies tensors to fixed places of one memory, as often as asked. The kinds and shapes stay the same."""

    def __init__(self, memory: Bytes, places: Sequence[Place]) -> None:
        self._memory = memory
        self._base = address_of_memory(memory)
        self._places = places
        self._views: list[Any] = [None] * len(places)  # Any: tensors and arrays over the memory, made when needed
        self._plain_types = _plain_types()

    def run(
        self,
        sources: Sequence[Any],
        is_abandoned: Callable[[], bool],
        on_copied: Callable[[int, int], None] = lambda _start, _end: None,
    ) -> None:
        """Copy every source to its place, the large ones last and in the order of their places.

        ``on_copied`` gets ranges of the memory that are complete, from threads of this copy. Raises SaveAbandoned, with
        some of the sources copied.
        """
        moves, others = self._sort_out(sources)
        self._copy_by_torch(others, sources, is_abandoned)
        if moves:
            moves.sort()
            base = self._base
            on_copied(0, moves[0][0] - base)
            move_all(moves, is_abandoned, lambda start, end: on_copied(start - base, end - base))

    def _sort_out(self, sources: Sequence[Any]) -> tuple[list[MemoryMove], list[int]]:
        """The moves of what is large and contiguous, and the indices of what torch copies. Other arrays are copied."""
        base, plain_types = self._base, self._plain_types
        moves: list[MemoryMove] = []
        others: list[int] = []
        for index, (source, (start, _, size)) in enumerate(zip(sources, self._places, strict=True)):
            if not size:
                continue
            if isinstance(source, np.ndarray):
                if size >= _SMALL_BYTES and source.nbytes == size and source.flags.c_contiguous:
                    moves.append((base + start, source.ctypes.data, size))
                else:
                    np.copyto(self._view(index, source), source)
            elif size >= _SMALL_BYTES and type(source) in plain_types and _is_plain(source, size):
                moves.append((base + start, source.data_ptr(), size))
            else:
                others.append(index)
        return moves, others

    def _copy_by_torch(self, indices: Sequence[int], sources: Sequence[Any], is_abandoned: Callable[[], bool]) -> None:
        if not indices:
            return
        torch: Any = sys.modules["torch"]  # Any: this room does not import it
        devices = {sources[index].device for index in indices if sources[index].is_cuda}
        streams = [torch.cuda.Stream(device) for device in devices]
        with ExitStack() as side, torch.no_grad():
            for stream in streams:  # wait for the kernels that compute the values, then copy beside later ones
                stream.wait_stream(torch.cuda.current_stream(stream.device))
                side.enter_context(torch.cuda.stream(stream))
            for first in range(0, len(indices), _BATCH):
                if is_abandoned():
                    raise _abandoned()
                batch = indices[first : first + _BATCH]
                into = [self._view(index, sources[index]) for index in batch]
                torch._foreach_copy_(into, [sources[index] for index in batch], non_blocking=bool(streams))
            for stream in streams:
                stream.synchronize()

    def _view(self, index: int, source: Any) -> Any:
        """The part of the memory that a source is copied into, as a tensor or an array of its kind."""
        if self._views[index] is None:
            start, shape, size = self._places[index]
            view: Any = self._memory[start : start + size]
            if not isinstance(source, np.ndarray):
                view = sys.modules["torch"].from_numpy(view)
            self._views[index] = view.view(source.dtype).reshape(shape)
        return self._views[index]


def move_all(
    moves: Sequence[MemoryMove],
    is_abandoned: Callable[[], bool] = lambda: False,
    on_moved: Callable[[int, int], None] = lambda _start, _end: None,
) -> None:
    """Make these copies, with as many threads as help. The caller keeps all addresses valid.

    ``on_moved`` gets the target addresses of each finished piece and of the piece after it. Moves are sorted then.
    """
    pieces = list(_cut(moves))
    work = _MoveWork(pieces, is_abandoned, on_moved)
    work.run(helpers=_count_helpers(pieces))
    if work.is_abandoned:
        raise _abandoned()


class _MoveWork:
    """Pieces of work that the caller and its helpers take in turn."""

    def __init__(
        self,
        pieces: Sequence[Sequence[MemoryMove]],
        is_abandoned: Callable[[], bool],
        on_moved: Callable[[int, int], None],
    ) -> None:
        starts = [piece[0][0] for piece in pieces]
        ends = [*starts[1:], *(piece[-1][0] + piece[-1][2] for piece in pieces[-1:])]
        self._left: Iterator[_Piece] = iter(list(zip(pieces, starts, ends, strict=True)))
        self._ask = is_abandoned
        self._on_moved = on_moved
        self._change = threading.Condition()
        self._helping = 0  # helpers that are in a piece; a signal can interrupt the caller anywhere, but no helper
        self.is_abandoned = False

    def run(self, *, helpers: int) -> None:
        """Work, and return when no thread writes to the memory any more, also when it raises."""
        try:
            for _ in range(helpers):
                with suppress(RuntimeError):  # the interpreter is ending and starts no more threads
                    _thread.start_new_thread(self._help, ())  # Thread.start would wait until the thread runs
            while (piece := self._take(as_helper=False)) is not None:
                self._move(piece)
            self._stop()
        except BaseException:
            self._stop()
            raise

    def _help(self) -> None:
        while (piece := self._take(as_helper=True)) is not None:
            self._move(piece)
            with self._change:
                self._helping -= 1
                self._change.notify_all()

    def _stop(self) -> None:
        interrupt: BaseException | None = None
        while True:
            try:
                with self._change:
                    self._left = iter(())
                    while self._helping:
                        self._change.wait()
                break
            except BaseException as error:  # noqa: BLE001  # Ctrl-C, raised below: the memory is not free before
                interrupt = error
        if interrupt is not None:
            raise interrupt

    def _move(self, piece: _Piece) -> None:
        moves, start, end = piece
        for each in moves:
            move(*each)
        self._on_moved(start, end)

    def _take(self, *, as_helper: bool) -> _Piece | None:
        with self._change:
            self.is_abandoned = self.is_abandoned or self._ask()
            piece = None if self.is_abandoned else next(self._left, None)
            self._helping += as_helper and piece is not None
            return piece


def _cut(moves: Sequence[MemoryMove]) -> Iterator[list[MemoryMove]]:
    """Pieces of about equal size, in the order of the moves: small ones together, large ones in parts."""
    piece: list[MemoryMove] = []
    room = _PIECE_BYTES
    for each in moves:
        size = each[2]
        if piece and size > _PIECE_BYTES:
            yield piece
            piece, room = [], _PIECE_BYTES
        while size > _PIECE_BYTES:
            target, source, _ = each
            yield [(target, source, _PIECE_BYTES)]
            size -= _PIECE_BYTES
            each = (target + _PIECE_BYTES, source + _PIECE_BYTES, size)  # what is left of it
        piece.append(each)
        room -= size
        if room <= 0:
            yield piece
            piece, room = [], _PIECE_BYTES
    if piece:
        yield piece


def _count_helpers(pieces: Sequence[Sequence[MemoryMove]]) -> int:
    """Threads besides the caller's: none where the program itself has limited torch to one thread.

    Short copies do not run beside each other, because they keep the interpreter lock.
    """
    shared = sum(piece[0][2] >= LONG_BYTES for piece in pieces)
    torch = sys.modules.get("torch")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    allowed = cores if torch is None else min(cores, torch.get_num_threads())
    return max(0, min(_MOST_THREADS, allowed, shared) - 1)


def _is_plain(source: Any, size: int) -> bool:
    """Whether its bytes in host memory are those to be stored."""
    return (
        source.is_cpu and source.nbytes == size and source.is_contiguous() and not (source.is_conj() or source.is_neg())
    )


def _plain_types() -> frozenset[type]:
    torch = sys.modules.get("torch")
    return frozenset() if torch is None else frozenset({torch.Tensor, torch.nn.Parameter, torch.nn.Buffer})


def _abandoned() -> SaveAbandoned:
    return SaveAbandoned("the save was abandoned while its state was being copied; nothing of it is visible")


def place_of(start: int, shape: tuple[int, ...], itemsize: int) -> Place:
    return Place(start, shape, itemsize * math.prod(shape))
