from __future__ import annotations

import asyncio

import pytest

from chockstone.catalog import Catalog
from chockstone.engine.engine import Engine
from chockstone.engine.storage.archive_storage import ArchiveStorage
from chockstone.wire.failures import BadRequest
from support.engine.fake_backend import FakeBackend
from support.engine.making import RUN, answer, archives_of, made_run, names, save, saved, started, until


async def size_of_one(backend: FakeBackend, catalog: Catalog, storage: ArchiveStorage) -> int:
    async with started(backend, catalog, storage) as engine:
        row = await saved(engine, await made_run(engine, 9), 1)
        await engine.checkpoints.delete([row], by="local")
        return row.size_bytes


async def test_a_save_over_its_quota_is_refused_with_all_one_needs_to_know(
    backend: FakeBackend, catalog: Catalog, storage: ArchiveStorage
) -> None:
    size = await size_of_one(backend, catalog, storage)
    limit = 2 * size + 100
    async with started(backend, catalog, storage, run_quota_bytes=limit) as engine:
        live = await made_run(engine)
        first = await saved(engine, live, 1, "a")
        await saved(engine, live, 2, "b")

        told = await answer(engine, await save(engine, live, 3, "c"))

        assert told["category"] == "user"
        numbers = (
            f"needs {size} bytes",
            f"keep {limit} bytes",
            f"{2 * size} bytes",
            "are in use",
            "100 bytes are left",
        )
        commands = (
            f"`chockstone checkpoints ls --run {RUN}`",
            f"`chockstone checkpoints rm --run {RUN} --older-than 7d",
        )
        for word in (*numbers, *commands, f"({size / 1000:.1f} kB)"):
            assert word in told["error"]
        assert await names(engine) == {"a", "b"}
        assert await catalog.checkpoints.list_pending() == ()
        assert len(archives_of(engine)) == 2
        await engine.checkpoints.delete([first], by="local")
        await saved(engine, live, 4, "c")


async def test_saves_at_the_same_time_never_count_the_same_room(
    backend: FakeBackend, catalog: Catalog, storage: ArchiveStorage
) -> None:
    size = await size_of_one(backend, catalog, storage)
    async with started(backend, catalog, storage, user_quota_bytes=3 * size) as engine:
        runs = [await made_run(engine, number) for number in range(4)]
        requests = [await save(engine, live, number, f"n{number}") for live in runs for number in (1, 2)]

        told = await asyncio.gather(*(answer(engine, request_id) for request_id in requests))

        assert sum("path" in each for each in told) == 3
        assert {each["category"] for each in told if "error" in each} == {"user"}
        assert (await catalog.checkpoints.usage(now=engine.policies._now())).size_bytes == 3 * size


async def test_one_owners_quota_holds_nobody_else_up(
    backend: FakeBackend, catalog: Catalog, storage: ArchiveStorage
) -> None:
    async with started(backend, catalog, storage) as engine:
        await engine.policies.set("user:local", {"quota_bytes": 1 << 30}, by="root")
        limited, other = await made_run(engine, 0), await made_run(engine, 1, owner="ann")
        backend.hold("disk")
        requests = [
            await save(engine, live, seq_id, name)
            for live, seq_id, name in ((limited, 1, "a"), (limited, 2, "b"), (other, 1, "a"))
        ]
        await until(lambda: backend.words().count("save") == 2)

        saving = {values["metadata"]["owner"] for values in backend.values_of("save")}
        assert saving == {"local", "ann"}, "the limited one's second save waits for its first"
        assert [values["allowance_bytes"] for values in backend.values_of("save")] in ([1 << 30, None], [None, 1 << 30])

        backend.let_go("disk")
        for request_id in requests:
            assert "error" not in await answer(engine, request_id)


async def test_a_quota_for_everyone_is_shared(backend: FakeBackend, catalog: Catalog, storage: ArchiveStorage) -> None:
    size = await size_of_one(backend, catalog, storage)
    async with started(backend, catalog, storage) as engine:
        await engine.policies.set("global", {"quota_bytes": 3 * size}, by="root")
        runs = [await made_run(engine, 0), await made_run(engine, 1, owner="ann")]
        requests = [await save(engine, live, number, f"n{number}") for live in runs for number in (1, 2)]

        told = await asyncio.gather(*(answer(engine, request_id) for request_id in requests))

        assert sum("path" in each for each in told) == 3
        [refused] = [each["error"] for each in told if "error" in each]
        assert "this server may keep" in refused


async def test_what_is_overwritten_does_not_count(
    backend: FakeBackend, catalog: Catalog, storage: ArchiveStorage
) -> None:
    size = await size_of_one(backend, catalog, storage)
    async with started(backend, catalog, storage, run_quota_bytes=size) as engine:
        live = await made_run(engine)
        await saved(engine, live, 1)

        assert "error" in await answer(engine, await save(engine, live, 2, "b"))
        await saved(engine, live, 3, overwrite=True)


async def test_trash_does_not_count_until_it_is_restored(
    backend: FakeBackend, catalog: Catalog, storage: ArchiveStorage
) -> None:
    size = await size_of_one(backend, catalog, storage)
    async with started(backend, catalog, storage, run_quota_bytes=size, trash_seconds=3600) as engine:
        live = await made_run(engine)
        row = await saved(engine, live, 1)
        await engine.checkpoints.delete([row], by="local")
        [trashed] = await engine.checkpoints.list_trash(None)

        await saved(engine, live, 2, "b")

        with pytest.raises(BadRequest, match=r"\b0 bytes are left"):
            await engine.checkpoints.undelete(trashed.trash_id, by="local")
        assert await names(engine) == {"b"}


async def test_copies_count(backend: FakeBackend, catalog: Catalog, storage: ArchiveStorage) -> None:
    size = await size_of_one(backend, catalog, storage)
    async with started(backend, catalog, storage) as engine:
        await engine.policies.set("user:ann", {"quota_bytes": 2 * size}, by="root")
        row = await saved(engine, await made_run(engine), 1)

        async def copy() -> str:
            try:
                copied = await engine.checkpoints.copy(row, owner="ann", project_id=None, by="ann")
            except BadRequest as error:
                return str(error)
            return copied.path

        told = await asyncio.gather(*(copy() for _ in range(4)))

        assert sum(each.startswith("tinker://") for each in told) == 2
        assert len(archives_of(engine)) == 3


async def test_without_a_quota_nothing_is_counted(
    engine: Engine, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = await made_run(engine)

    async def never(**_: object) -> None:
        raise AssertionError("counted")

    monkeypatch.setattr(catalog.checkpoints, "usage", never)

    await saved(engine, live, 1)
