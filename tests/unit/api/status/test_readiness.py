from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from chockstone.api.context import Context
from chockstone.api.status import readiness
from chockstone.api.status.disk_space import FreeSpace
from chockstone.catalog import CatalogUnavailable
from chockstone.checkpoints.errors import CheckpointMissing, StoreUnreachable
from support.served import Served


@pytest.fixture(autouse=True)
def ask_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "_FRESH_SECONDS", 0.0)


async def checks(context: Context) -> dict[str, str]:
    return {reason.check: reason.detail for reason in await context.status.readiness.reasons()}


async def test_a_server_that_can_work_is_ready(context: Context) -> None:
    assert await checks(context) == {}


async def test_every_reason_is_given_at_once(context: Context, served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail() -> None:
        raise CatalogUnavailable("postgresql://db.internal refused")

    async def full() -> FreeSpace:
        return FreeSpace(5, 100, "/data")

    served.backend.is_ready = False
    served.engine._writer.trouble = "the disk is full"  # type: ignore[union-attr]  # a journal is kept
    context.status.disk.reserve_bytes = 10
    monkeypatch.setattr(context.catalog, "ping", fail)
    monkeypatch.setattr(context.status.disk, "look", full)
    monkeypatch.setattr(readiness, "_may_write", lambda _: False)
    context.engine.shutdown.begin()

    found = await checks(context)

    assert set(found) == {"server", "worker", "journal", "catalog", "store", "disk"}
    assert "5 bytes left, less than the reserve of 10 bytes" in found["disk"]
    assert "db.internal" not in found["catalog"], "a probe needs no key"
    served.engine._writer.trouble = None  # type: ignore[union-attr]  # so that the server can stop


async def test_the_worker_is_starting_restarting_or_failing(context: Context, served: Served) -> None:
    served.backend.is_ready = False
    served.backend.generation = 0
    [first] = await context.status.readiness.reasons()
    served.backend.generation = 1
    served.backend.deaths, served.backend._reason = 1, "signal 9"
    [second] = await context.status.readiness.reasons()
    served.backend.trouble = "the worker died 3 times"
    [third] = await context.status.readiness.reasons()

    assert (first.detail, first.is_starting) == ("the models are being loaded", True)
    assert (second.detail, second.is_starting) == ("the worker is being started again: signal 9", True)
    assert (third.detail, third.is_starting) == ("the worker died 3 times", False)


async def test_a_model_that_the_worker_did_not_load_is_a_reason(context: Context, served: Served) -> None:
    served.backend.environment["models"] = {}

    assert "tiny" in (await checks(context))["models"]


async def test_a_part_that_does_not_answer_is_given_up(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    async def hang() -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(readiness, "_TIMEOUT_SECONDS", 0.01)
    monkeypatch.setattr(context.catalog, "ping", hang)

    assert "does not answer within" in (await checks(context))["catalog"]


@pytest.mark.parametrize(("error", "is_ready"), [(CheckpointMissing("x"), True), (StoreUnreachable("bucket"), False)])
async def test_an_object_store_is_asked_for_what_it_does_not_have(
    context: Context, monkeypatch: pytest.MonkeyPatch, error: Exception, is_ready: bool
) -> None:
    async def stat(_: str) -> None:
        raise error

    monkeypatch.setattr(context.engine.storage, "store", object())
    monkeypatch.setattr(context.engine.storage, "stat", stat)

    assert ("store" not in await checks(context)) == is_ready


async def test_many_probes_ask_once(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = 0

    async def ping() -> None:
        nonlocal asked
        asked += 1

    monkeypatch.setattr(readiness, "_FRESH_SECONDS", 60.0)
    monkeypatch.setattr(context.catalog, "ping", ping)

    await asyncio.gather(*(context.status.readiness.reasons() for _ in range(50)))
    await context.status.readiness.reasons()

    assert asked == 1


def test_a_directory_that_is_not_made_yet_may_be_written(tmp_path: Path) -> None:
    assert readiness._may_write(tmp_path / "not made yet")
