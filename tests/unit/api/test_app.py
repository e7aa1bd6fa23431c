from __future__ import annotations

import gc
from pathlib import Path
from weakref import ReferenceType, ref

from fastapi import FastAPI

from chockstone.api.vendors.paths import vendor_of
from support.api.users import User
from support.served import Served, serve_in_process


async def test_every_path_of_ours_but_that_of_the_metrics_is_below_one_prefix(served: Served) -> None:
    paths = served.app.openapi()["paths"]

    ours = [path for path in paths if vendor_of(path) is None]
    assert [path for path in ours if not path.startswith("/api/v1/")] == ["/metrics"]


async def test_one_slash_more_is_another_path(ann: User) -> None:
    assert (await ann.http.get("training_runs")).status_code == 200
    assert (await ann.http.get("training_runs/", follow_redirects=False)).status_code == 404


async def test_nulls_are_left_out_of_answers(ann: User) -> None:
    session_id = await ann.session()

    answer = (await ann.http.get(f"sessions/{session_id}")).json()

    assert answer["sampler_ids"] == []
    assert None not in answer.values()


async def test_an_app_that_nobody_uses_is_freed(tmp_path: Path, models: dict[str, Path]) -> None:
    async def use_one() -> ReferenceType[FastAPI]:
        async with serve_in_process(tmp_path, models) as served:
            assert (await served.http.get("healthz")).is_success
            return ref(served.app)

    used = await use_one()
    gc.collect()

    assert used() is None
