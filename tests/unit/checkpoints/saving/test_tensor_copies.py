"""Copies of tensors into the memory of a snapshot."""

from __future__ import annotations

import _thread
import threading
from typing import Any

import numpy as np
import pytest
import torch

from chockstone.checkpoints.errors import SaveAbandoned
from chockstone.checkpoints.format.host_memory import address_of_memory, allocate
from chockstone.checkpoints.saving import tensor_copies
from chockstone.checkpoints.saving.tensor_copies import MemoryMove, TensorCopies, move_all, place_of

RANDOM = torch.Generator().manual_seed(1)


def never() -> bool:
    return False


def copied(*sources: Any) -> list[bytes]:
    """The bytes of each source after the copy."""
    places = []
    end = 0
    for source in sources:
        places.append(place_of(end, tuple(source.shape), source.dtype.itemsize))
        end += places[-1].size + -places[-1].size % 16
    memory = allocate(end)
    TensorCopies(memory, places).run(sources, never)
    return [memory[place.start : place.start + place.size].tobytes() for place in places]


def as_stored(source: Any) -> bytes:
    if isinstance(source, np.ndarray):
        return source.tobytes()
    return source.detach().resolve_conj().resolve_neg().contiguous().view(-1).view(torch.uint8).numpy().tobytes()


def test_every_kind_of_tensor_is_copied() -> None:
    matrix = torch.randn(300, 200, generator=RANDOM)
    sources = [
        matrix,
        matrix.T,
        matrix[::2, 1:],
        matrix.to(torch.bfloat16),
        torch.nn.Parameter(matrix),
        torch.view_as_complex(torch.randn(50, 2, generator=RANDOM)).conj(),
        torch.view_as_complex(torch.randn(50, 2, generator=RANDOM)).conj().imag,
        torch.tensor(3.5),
        np.arange(12.0).reshape(3, 4),
        np.asfortranarray(np.arange(12.0).reshape(3, 4)),
        np.arange(12)[::3],
        np.arange(12_000.0),
        np.arange(12_000.0).reshape(3, 4000).T,
    ]

    assert copied(*sources) == [as_stored(source) for source in sources]


def test_an_empty_tensor_takes_no_place() -> None:
    assert copied(torch.zeros(0, 3), torch.ones(2)) == [b"", as_stored(torch.ones(2))]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_torch_copies_no_tensor_that_it_would_divide_among_threads(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    """It divides from 32768 elements on, and then waits for all threads of OpenMP."""
    monkeypatch.setattr(torch, "_foreach_copy_", None)
    source = torch.ones(32_768, dtype=dtype)

    assert copied(source) == [as_stored(source)]


@pytest.fixture
def moves(monkeypatch: pytest.MonkeyPatch) -> tuple[np.ndarray, np.ndarray, list[MemoryMove]]:
    """From a source to a target, in moves below and above the size of a piece."""
    monkeypatch.setattr(tensor_copies, "_PIECE_BYTES", 4096)
    monkeypatch.setattr(tensor_copies, "LONG_BYTES", 1)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    monkeypatch.setattr(tensor_copies.os, "sched_getaffinity", lambda _: range(4))
    generator = np.random.default_rng(2)
    sizes = [int(size) for size in generator.integers(1, 3 * 4096, 200)] + [4096, 4097, 8192, 200_000, 1]
    source = generator.integers(0, 256, sum(sizes), dtype=np.uint8)
    target = np.zeros_like(source)
    starts = [0, *np.cumsum(sizes)[:-1].tolist()]
    to, out_of = address_of_memory(target), address_of_memory(source)
    return source, target, [(to + at, out_of + at, size) for at, size in zip(starts, sizes, strict=True)]


def test_several_threads_copy_every_byte(moves: tuple[np.ndarray, np.ndarray, list[MemoryMove]]) -> None:
    source, target, wanted = moves

    move_all(wanted)

    assert np.array_equal(source, target)


@pytest.mark.parametrize("start", ["never", "refused"])
def test_the_caller_waits_for_no_thread_that_has_not_begun(
    moves: tuple[np.ndarray, np.ndarray, list[MemoryMove]], monkeypatch: pytest.MonkeyPatch, start: str
) -> None:
    source, target, wanted = moves

    def start_new_thread(*_: object) -> None:
        if start == "refused":
            raise RuntimeError("can't start new thread at interpreter shutdown")

    monkeypatch.setattr(_thread, "start_new_thread", start_new_thread)
    move_all(wanted)

    assert np.array_equal(source, target)


def test_a_program_that_limits_torch_to_one_thread_gets_one(
    moves: tuple[np.ndarray, np.ndarray, list[MemoryMove]], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target, wanted = moves
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    monkeypatch.setattr(_thread, "start_new_thread", None)

    move_all(wanted)

    assert np.array_equal(source, target)


def test_an_abandoned_copy_ends_early(moves: tuple[np.ndarray, np.ndarray, list[MemoryMove]]) -> None:
    source, target, wanted = moves
    asked = iter([False, True])

    with pytest.raises(SaveAbandoned):
        move_all(wanted, lambda: next(asked, True))

    assert not np.array_equal(source, target)


def test_an_interrupt_waits_until_no_thread_writes_to_the_memory(
    moves: tuple[np.ndarray, np.ndarray, list[MemoryMove]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the next save gets a buffer into which a thread of this one still copies."""
    begun, ended = threading.Event(), threading.Event()
    caller = threading.current_thread()

    def move(*_: int) -> None:
        if threading.current_thread() is caller:
            begun.wait(30)
            raise KeyboardInterrupt
        begun.set()
        ended.wait(0.05)
        ended.set()

    monkeypatch.setattr(tensor_copies, "move", move)
    with pytest.raises(KeyboardInterrupt):
        move_all(moves[2])

    assert ended.is_set()


def test_an_interrupt_between_the_starts_of_threads_waits_for_those_that_run(
    moves: tuple[np.ndarray, np.ndarray, list[MemoryMove]], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, stops, ended = threading.Event(), threading.Event(), threading.Event()
    start_new_thread, stop = _thread.start_new_thread, tensor_copies._MoveWork._stop

    def start_and_interrupt(*arguments: Any) -> None:
        start_new_thread(*arguments)
        assert begun.wait(30)
        raise KeyboardInterrupt

    def move(*_: int) -> None:
        begun.set()
        assert stops.wait(30)
        ended.set()

    def note_and_stop(work: Any) -> None:
        stops.set()
        stop(work)

    monkeypatch.setattr(_thread, "start_new_thread", start_and_interrupt)
    monkeypatch.setattr(tensor_copies, "move", move)
    monkeypatch.setattr(tensor_copies._MoveWork, "_stop", note_and_stop)
    with pytest.raises(KeyboardInterrupt):
        move_all(moves[2])
    is_ended = ended.is_set()
    stops.set()

    assert is_ended


def test_short_copies_are_made_by_the_caller_alone(
    moves: tuple[np.ndarray, np.ndarray, list[MemoryMove]], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target, wanted = moves
    monkeypatch.setattr(tensor_copies, "LONG_BYTES", 64 * 1024)
    monkeypatch.setattr(_thread, "start_new_thread", None)

    move_all(wanted)

    assert np.array_equal(source, target)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_range_is_reported_when_all_of_it_is_copied(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_copies, "_count_helpers", lambda _: threads - 1)
    sizes = [1, 1, 5, 20, 3, 8, 9, 0.125, 30, 1, 16, 0.0625, 4]  # in MiB: large ones between small ones
    sources = [np.ones(int(size * 1024**2), np.uint8) for size in sizes]
    ends = np.cumsum([source.nbytes for source in sources]).tolist()
    places = [place_of(end - source.nbytes, source.shape, 1) for end, source in zip(ends, sources, strict=True)]
    memory = allocate(ends[-1])
    ranges: list[tuple[int, int, bool]] = []

    TensorCopies(memory, places).run(
        sources, never, lambda start, end: ranges.append((start, end, bool(memory[start:end].all())))
    )

    assert all(is_copied for _, _, is_copied in ranges)
    covered = 0
    for start, end, _ in sorted(ranges):
        assert start == covered
        covered = end
    assert covered == ends[-1]
