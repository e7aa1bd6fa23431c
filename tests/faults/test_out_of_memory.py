"""A worker with too little address space: micro-batches are halved, the journal has it, and a kill loses no bit."""

from __future__ import annotations

import json
import resource
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson

from chockstone.backends.protocol import SaveCall
from chockstone.backends.supervision.local import LocalBackend
from chockstone.backends.supervision.process import WorkerConfig
from chockstone.catalog import Catalog
from chockstone.checkpoints import Archive, load_state, open_store
from chockstone.engine.config import StorageRules
from chockstone.engine.engine import Engine
from chockstone.engine.storage.archive_storage import ArchiveStorage
from support.backends.bodies import pass_body
from support.backends.saving import make_directory
from support.engine.making import NOW, RUN, Clock, made_run, result_of, until

ROOM_BYTES = 48 << 20  # of address space beyond what the worker has when it is ready
LARGE = [60] * 700  # datums; in one micro-batch they need several times that
LIMIT = resource.RLIMIT_AS


@asynccontextmanager
async def served(home: Path) -> AsyncIterator[tuple[Engine, LocalBackend]]:
    """An engine with a real worker."""
    home.mkdir(exist_ok=True)
    model = home.parent / "model"
    if not model.exists():
        config = make_directory(model, "qwen3", tied=True) / "config.json"
        config.write_text(json.dumps(json.loads(config.read_bytes()) | {"max_position_embeddings": 1 << 16}))
    config = WorkerConfig(
        models={"tiny": str(model)},
        store=str(home / "checkpoints"),
        device="cpu",
        threads=1,
        tokens_per_micro_batch=1 << 16,
        activation_checkpointing="off",
    )
    engines: list[Engine] = []

    def tell(reason: str) -> None:
        engines[0].worker_lost(reason)

    backend = LocalBackend(config, on_lost=tell)
    storage = ArchiveStorage(open_store(home / "checkpoints"))
    async with await Catalog.open(f"sqlite:///{home}/catalog.sqlite3") as catalog:
        await catalog.sessions.create("s", owner="local", sdk_version="0.36.0", now=NOW)
        rules = StorageRules(reserve_bytes=0, sweep_seconds=1e6, scrub_bytes_per_second=0)
        engine = Engine(backend, catalog, storage, data=home, rules=rules, now=Clock())
        engines.append(engine)
        await engine.start()
        try:
            await backend.ready()
            yield engine, backend
        finally:
            await engine.stop()
            storage.close()


def limit_memory(backend: LocalBackend, room_bytes: int | None) -> None:
    handle: Any = backend._handle  # Any: the process is a detail of the backend
    pid = handle._spawned.process.pid
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[0])
    soft = resource.RLIM_INFINITY if room_bytes is None else pages * resource.getpagesize() + room_bytes
    resource.prlimit(pid, LIMIT, (soft, resource.RLIM_INFINITY))


async def state_of(backend: LocalBackend, home: Path, archive: str) -> dict[str, Any]:
    await backend.save(SaveCall(run_id=RUN, archive=archive, kind="recovery"))
    with Archive.open(home / "checkpoints" / f"{archive}.tar") as opened:
        return load_state(opened)


def flat(state: Any) -> Any:
    """Tensors as bytes, so that states can be compared."""
    if isinstance(state, dict):
        return {key: flat(value) for key, value in state.items()}
    return state.numpy().tobytes() if hasattr(state, "numpy") else state


async def test_a_pass_that_ran_out_of_memory_is_replayed_with_its_bits(tmp_path: Path) -> None:
    home = tmp_path / "home"
    async with served(home) as (engine, backend):
        live = await made_run(engine)
        await result_of(engine, await engine.training.forward_backward(live, 1, pass_body(9, 31)))
        limit_memory(backend, ROOM_BYTES)

        first = await result_of(engine, await engine.training.forward_backward(live, 2, pass_body(*LARGE)))
        assert not first.is_failure, first.body
        limit_memory(backend, None)
        facts = [each.outcome.facts for each in live.journal.operations if each.outcome is not None]
        budget = facts[-1]["tokens_per_micro_batch"]
        before = flat(await state_of(backend, home, "before"))

        handle = backend._handle
        assert handle is not None
        handle.kill()  # SIGKILL
        await until(lambda: backend.generation == 2)
        await result_of(engine, await engine.training.forward_backward(live, 3, pass_body(5, forward_only=True)))

        assert flat(await state_of(backend, home, "after")) == before
        [receipt] = await engine.catalog.recoveries.list(RUN, limit=9)
        assert (receipt.matched, receipt.mismatched) == (2, 0)
        assert budget <= 60 * 350


async def test_a_datum_that_does_not_fit_fails_alone_and_says_so(tmp_path: Path) -> None:
    home = tmp_path / "home"
    async with served(home) as (engine, backend):
        live = await made_run(engine)
        await result_of(engine, await engine.training.forward_backward(live, 1, pass_body(9, 31)))
        before = flat(await state_of(backend, home, "before"))
        limit_memory(backend, ROOM_BYTES // 8)

        failed = await result_of(engine, await engine.training.forward_backward(live, 2, pass_body(16_000, 7)))

        limit_memory(backend, None)
        told = orjson.loads(failed.body)
        assert told["category"] == "user"
        assert "datum 0 does not fit into memory: it has 16000 tokens" in told["error"]
        assert flat(await state_of(backend, home, "after")) == before
        assert backend.generation == 1, "the worker survived"
