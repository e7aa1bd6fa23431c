"""Rows to test with: everything about them is ordinary unless a test says otherwise."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from chockstone.catalog import Catalog, CheckpointRow, RunRow, SamplerRow, SessionRow

NOW = datetime(2030, 1, 1, 12, tzinfo=UTC)


def after(**passed: float) -> datetime:
    return NOW + timedelta(**passed)


async def make_session(catalog: Catalog, session_id: str = "s", **facts: Any) -> SessionRow:
    return await catalog.sessions.create(session_id, **{"owner": "local", "sdk_version": "0.36.0", "now": NOW, **facts})


async def make_run(catalog: Catalog, session_id: str = "s", model_seq_id: int = 0, **facts: Any) -> RunRow:
    ordinary = {"owner": "local", "base_model": "Qwen/Qwen3-8B", "spec": {"rank": 32}, "now": NOW}
    return await catalog.runs.create(session_id, model_seq_id, **{**ordinary, **facts})


async def make_sampler(catalog: Catalog, session_id: str = "s", seq_id: int = 0, **facts: Any) -> SamplerRow:
    ordinary = {"owner": "local", "base_model": "Qwen/Qwen3-8B", "now": NOW}
    return await catalog.samplers.create(session_id, seq_id, **{**ordinary, **facts})


async def begin(catalog: Catalog, name: str = "final", **facts: Any) -> CheckpointRow:
    ordinary = {
        "run_id": "s:train:0",
        "kind": "weights",
        "archive": f"archives/{name}",
        "owner": "local",
        "base_model": "Qwen/Qwen3-8B",
        "spec": {"rank": 32},
        "now": NOW,
    }
    return await catalog.checkpoint_saves.begin(name=name, **{**ordinary, **facts})


async def save(catalog: Catalog, name: str = "final", *, size_bytes: int = 100, **facts: Any) -> CheckpointRow:
    begun = await begin(catalog, name, **facts)
    return (await catalog.checkpoint_saves.commit(begun, size_bytes=size_bytes, now=facts.get("now", NOW))).checkpoint
