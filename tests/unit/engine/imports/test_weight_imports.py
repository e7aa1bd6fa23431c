from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import IO

import pytest

from chockstone.backends.run_spec import RunSpec
from chockstone.catalog import RowMissing
from chockstone.engine.config import Busy
from chockstone.engine.imports.uploads import WeightUpload
from chockstone.wire.failures import BadRequest, ServerFailure
from support.adapters import adapter_files
from support.served import Served, serve_in_process

OWNER = "local"


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"architectures": ["Tiny"], "max_position_embeddings": 128}')
    (tmp_path / "home").mkdir()
    async with serve_in_process(tmp_path / "home", {"tiny": tmp_path / "model"}) as served:
        yield served


async def begin(served: Served, files: dict[str, bytes] | None = None) -> WeightUpload:
    upload = await served.engine.imports.start(
        owner=OWNER,
        base_model="tiny",
        spec=RunSpec(rank=4, seed=1),
        optimizer={"type": "adamw"},
        project_id=None,
        name="imported",
    )
    for name, content in (adapter_files() if files is None else files).items():

        async def fill(file: IO[bytes], content: bytes = content) -> None:
            file.write(content)

        await served.engine.imports.receive(upload, name, fill)
    return upload


async def test_a_file_is_received_once_at_a_time(served: Served) -> None:
    upload, imports = await begin(served), served.engine.imports
    is_open, may_end = asyncio.Event(), asyncio.Event()

    async def slowly(file: IO[bytes]) -> None:
        is_open.set()
        await may_end.wait()

    async def at_once(file: IO[bytes]) -> None:
        file.write(b"{}")

    first = asyncio.create_task(imports.receive(upload, "adapter_config.json", slowly))
    await is_open.wait()
    with pytest.raises(Busy, match="is being received already"):
        await imports.receive(upload, "adapter_config.json", at_once)

    may_end.set()
    await first
    await imports.receive(upload, "adapter_config.json", at_once)


async def test_finishes_at_the_same_time_commit_one_checkpoint(served: Served) -> None:
    upload, imports = await begin(served), served.engine.imports

    found = await asyncio.gather(*(imports.finish(upload.upload_id, owner=OWNER) for _ in range(3)))

    assert len({each.checkpoint.save_id for each in found}) == 1
    assert [each.receipt is None for each in found].count(False) == 1
    assert len(await served.engine.storage.names()) == 1


async def test_the_run_is_listed_and_not_loaded(served: Served) -> None:
    upload = await begin(served)

    await served.engine.imports.finish(upload.upload_id, owner=OWNER)

    row = await served.engine.catalog.runs.get(upload.run_id)
    assert (row.state, row.base_model, row.spec["rank"]) == ("unloaded", "tiny", 4)
    assert served.engine.runs.get(upload.run_id) is None
    assert (await served.engine.catalog.sessions.get(row.session_id)).is_finished


async def test_a_failure_of_the_worker_keeps_the_files_for_another_try(served: Served) -> None:
    upload, imports = await begin(served), served.engine.imports
    served.backend.fail_next("layout", ServerFailure("the worker died"))

    with pytest.raises(ServerFailure):
        await imports.finish(upload.upload_id, owner=OWNER)

    assert (await imports.finish(upload.upload_id, owner=OWNER)).checkpoint.name == "imported"


async def test_a_file_that_breaks_off_is_not_taken(served: Served) -> None:
    upload, imports = await begin(served, {}), served.engine.imports

    async def fill(file: IO[bytes]) -> None:
        file.write(b"half")
        raise ConnectionError

    with pytest.raises(ConnectionError):
        await imports.receive(upload, "adapter_config.json", fill)

    with pytest.raises(BadRequest, match="adapter_config"):
        await imports.finish(upload.upload_id, owner=OWNER)


async def test_a_file_that_the_upload_does_not_take_is_not_there(served: Served) -> None:
    upload = await begin(served)

    with pytest.raises(RowMissing, match="takes no file"):
        await served.engine.imports.find(upload.upload_id, "upload.json", owner=OWNER)


async def test_an_imported_checkpoint_can_be_rebuilt_from_its_archive(served: Served) -> None:
    upload = await begin(served)
    found = (await served.engine.imports.finish(upload.upload_id, owner=OWNER)).checkpoint

    with await served.engine.storage.open(found.archive) as archive:
        metadata = archive.manifest.metadata
    assert (metadata["path"], metadata["owner"], metadata["base_model"]) == (found.path, OWNER, "tiny")
    assert metadata["spec"] == dict(found.spec)
    assert upload.expires_at - found.created_at <= timedelta(hours=1)
