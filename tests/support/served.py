"""The app in this process, on a backend of numbers: for what needs no model, and no waiting."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import httpx
from fastapi import FastAPI

from chockstone.api.admission.uploads import Uploads
from chockstone.api.app import create_app
from chockstone.api.context import Context, audited_refusals
from chockstone.api.model_descriptions import describe_models
from chockstone.api.sampler_sources import SamplerSources
from chockstone.api.signed_urls import SignedUrls
from chockstone.api.users import UserDirectory
from chockstone.catalog import Catalog
from chockstone.checkpoints import Store, open_store
from chockstone.console.app import make_console
from chockstone.engine.config import StorageRules
from chockstone.engine.engine import Engine
from chockstone.engine.ownership.data_directory import ARCHIVES
from chockstone.engine.replicas.replica_set import ReplicaSet
from chockstone.engine.storage.archive_storage import ArchiveStorage
from support.api.server_configs import default_config
from support.engine.fake_backend import FakeBackend
from support.engine.gap_meter import ScriptedGapMeter
from support.postgres import catalog_url

KEY = "tml-local"


@dataclass
class Served:
    app: FastAPI
    engine: Engine
    backends: list[FakeBackend]  # one per replica
    http: httpx.AsyncClient  # paths are relative to /api/v1/

    @property
    def backend(self) -> FakeBackend:
        return self.backends[0]

    async def session(self) -> str:
        answer = await self.http.post("create_session", json={"sdk_version": "0.36.0"})
        return str(answer.json()["session_id"])


@asynccontextmanager
async def serve_in_process(
    home: Path,
    models: Mapping[str, Path],
    *,
    rules: StorageRules | None = None,
    store: Store | None = None,
    keys: Mapping[str, str] | None = None,
    admins: frozenset[str] = frozenset(),
    uploads: Uploads | None = None,
    replicas: int = 1,
    gap_meter: ScriptedGapMeter | None = None,
) -> AsyncIterator[Served]:
    """Archives go to ``home/checkpoints``, unless to another store."""
    store = store or open_store(home / ARCHIVES)
    backends = [FakeBackend(store) for _ in range(replicas)]
    for number, backend in enumerate(backends):
        backend.environment["models"] = dict.fromkeys(models, "")
        backend.generation = 1 + 1000 * number
    storage = ArchiveStorage(store)
    sources = SamplerSources()
    config = default_config(home, models=models, storage=rules or StorageRules(), keys=keys or {}, admins=admins)
    async with await Catalog.open(catalog_url(home)) as catalog:

        def make(number: int) -> FakeBackend:
            backend = FakeBackend(store)
            backend.environment["models"] = dict.fromkeys(models, "")
            backend.generation = 1 + 1000 * len(backends) + number
            backends[number : number + 1] = [backend]
            return backend

        engine = Engine(
            backends[0] if replicas == 1 else ReplicaSet(backends, make=make),
            catalog,
            storage,
            data=home,
            durability=config.durability,
            limits=config.limits,
            rules=config.storage,
            on_session_end=sources.forget_session,
            gap_meter=gap_meter,
        )
        if gap_meter is not None:
            gap_meter.report = engine.gaps.record
        users = UserDirectory(config.keys, secret=b"s" * 32, now=lambda: datetime.now(UTC))
        context = Context(
            config,
            engine,
            users,
            describe_models(models),
            signed_urls=SignedUrls(b"s" * 32, users, now=lambda: datetime.now(UTC)),
            sampler_sources=sources,
            refused_keys=audited_refusals(engine),
        )
        app = create_app(context, uploads=uploads, console=make_console(context, b"s" * 32))
        await engine.start()
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(
            transport=transport, base_url="http://localhost/api/v1/", headers={"X-API-Key": KEY}, timeout=60
        ) as http:
            yield Served(app, engine, backends, http)
        await engine.stop()
        storage.close()
