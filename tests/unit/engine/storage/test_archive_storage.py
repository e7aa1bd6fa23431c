from __future__ import annotations

import asyncio
import threading

import numpy as np
import pytest

from chockstone.checkpoints import Checkpointer, Store
from chockstone.checkpoints.errors import CheckpointMissing, DamagedArchive, SealMismatch
from chockstone.checkpoints.stores.file_store import FileStore
from chockstone.engine.storage.archive_storage import ArchiveStorage, StorageClosed

MIB = 1 << 20


@pytest.fixture
def archive(store: Store) -> str:
    """Four mebibytes."""
    with Checkpointer(store) as checkpointer:
        checkpointer.save({"model": {"w": np.arange(4 * MIB, dtype=np.uint8)}}, name="run/a").result()
    return "run/a"


async def test_an_archive_is_opened_copied_and_deleted(storage: ArchiveStorage, archive: str) -> None:
    await storage.copy(archive, "run/b")

    assert await storage.delete(archive)
    assert not await storage.delete(archive)
    with await storage.open("run/b") as opened:
        assert opened.size == (await storage.stat("run/b")).size
    with pytest.raises(CheckpointMissing):
        await storage.open(archive)


async def test_an_open_archive_outlives_its_delete(storage: ArchiveStorage, archive: str) -> None:
    with await storage.open(archive) as opened:
        await storage.delete(archive)
        assert len(opened.read("model.safetensors")) > 4 * MIB


async def test_verifying_reads_every_byte(storage: ArchiveStorage, archive: str, store: FileStore) -> None:
    await storage.verify(archive)
    path = store.path(archive)
    content = bytearray(path.read_bytes())
    content[len(content) - 2 * MIB] ^= 1
    path.write_bytes(content)

    with pytest.raises(DamagedArchive):
        await storage.verify(archive)


async def test_what_is_no_archive_at_all_counts_as_damaged(
    storage: ArchiveStorage, archive: str, store: FileStore
) -> None:
    store.path(archive).write_bytes(b"no tar" * 10_000)

    with pytest.raises(DamagedArchive):
        await storage.open(archive)
    with pytest.raises(DamagedArchive):
        await storage.verify(archive)


async def test_verifying_keeps_to_a_rate(
    storage: ArchiveStorage, archive: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(storage._closing, "wait", pauses.append)

    await storage.verify(archive, bytes_per_second=MIB)

    assert max(pauses) >= 3  # the last of four mebibytes is due after four seconds, however fast they were read


async def test_closing_does_not_wait_for_a_slow_verification(store: Store, archive: str) -> None:
    storage = ArchiveStorage(store)
    verifying = asyncio.create_task(storage.verify(archive, bytes_per_second=1))
    deleting = asyncio.create_task(storage.delete("run/none"))
    assert not await deleting, "short work does not queue behind it"

    await asyncio.to_thread(storage.close)

    with pytest.raises((StorageClosed, asyncio.CancelledError)):
        await verifying


async def test_an_opening_that_nobody_waits_for_is_closed(
    storage: ArchiveStorage, archive: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, go_on, closed = threading.Event(), threading.Event(), threading.Event()
    original = storage._open

    def slow(name: str, seal: str | None) -> object:
        entered.set()
        go_on.wait(10)
        opened = original(name, seal)
        real_close = opened.close

        def close() -> None:
            real_close()
            closed.set()

        monkeypatch.setattr(opened, "close", close)
        return opened

    monkeypatch.setattr(storage, "_open", slow)
    opening = asyncio.create_task(storage.open(archive))
    await asyncio.to_thread(entered.wait, 10)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    go_on.set()

    assert await asyncio.to_thread(closed.wait, 10)


async def test_another_archive_in_its_place_is_not_opened_verified_or_lent(
    storage: ArchiveStorage, archive: str
) -> None:
    with await storage.open(archive) as opened:
        seal = opened.seal

    assert await storage.verify(archive, seal=seal) == seal
    for refused in (storage.open(archive, seal="0" * 64), storage.verify(archive, seal="0" * 64)):
        with pytest.raises(SealMismatch, match="another archive is in its place") as mismatch:
            await refused
        assert (mismatch.value.expected, mismatch.value.found) == ("0" * 64, seal)
