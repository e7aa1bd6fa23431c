"""Kills a server in the middle of finishing an import, at each write to the catalog and each file that appears.

Run as a script with a directory; see test_import_crashes.py. A child finishes the import and dies at point N. The next
server finds a whole checkpoint or none, and the same request then succeeds with one checkpoint.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from chockstone.api.context import Context
from chockstone.backends.run_spec import RunSpec
from chockstone.catalog.database.database import Database
from chockstone.checkpoints import Archive, verify_archive
from support.adapters import adapter_files
from support.served import Served, serve_in_process

OWNER = "local"


class Killer:
    def __init__(self, point: int) -> None:
        self._left = point

    def come_by(self) -> None:
        self._left -= 1
        if self._left < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def arm(self) -> None:
        run = Database.run

        async def watched_run(database: Database, work: Any, *, writes: bool = False) -> Any:
            if writes:
                self.come_by()
            result = await run(database, work, writes=writes)
            if writes:
                self.come_by()
            return result

        Database.run = watched_run  # type: ignore[method-assign]  # that is the point
        for name in ("rename", "link", "replace", "unlink"):
            setattr(os, name, self.watched(getattr(os, name)))

    def watched(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*values: Any, **facts: Any) -> Any:
            self.come_by()
            result = function(*values, **facts)
            self.come_by()
            return result

        return call


async def begin(served: Served) -> str:
    imports = served.engine.imports
    upload = await imports.start(
        owner=OWNER,
        base_model="tiny",
        spec=RunSpec(rank=4, seed=1),
        optimizer={"type": "adamw"},
        project_id=None,
        name="imported",
    )
    for name, content in adapter_files().items():

        async def fill(file: Any, content: bytes = content) -> None:
            file.write(content)

        await imports.receive(upload, name, fill)
    return upload.upload_id


async def finish_and_die(home: Path, models: dict[str, Path], upload_id: str, point: int) -> None:
    async with serve_in_process(home, models) as served:
        Killer(point).arm()
        await served.engine.imports.finish(upload_id, owner=OWNER)


async def judge(home: Path, models: dict[str, Path], upload_id: str) -> bool:
    """Whether the checkpoint was there after the crash. Fails if it was there in part."""
    async with serve_in_process(home, models) as served:
        context: Context = served.app.state.context
        rows = (await served.engine.catalog.checkpoints.list(OWNER, limit=10, offset=0, now=context.now())).rows
        assert await served.engine.storage.names() == [row.archive for row in rows], "an archive without a row"
        for row in rows:
            with Archive(served.engine.storage.store.open(row.archive), seal=row.seal) as archive:
                verify_archive(archive)
        again = await served.engine.imports.finish(upload_id, owner=OWNER)
        listed = (await served.engine.catalog.checkpoints.list(OWNER, limit=10, offset=0, now=context.now())).rows
        assert [row.path for row in listed] == [again.checkpoint.path]
        assert len(await served.engine.storage.names()) == 1
        return bool(rows)


def crash(home: Path, models: dict[str, Path], point: int) -> bool | None:
    """None: the import was finished before this point."""
    home.mkdir()

    async def prepare() -> str:
        async with serve_in_process(home, models) as served:
            return await begin(served)

    upload_id = asyncio.run(prepare())
    pid = os.fork()
    if pid == 0:
        with suppress(BaseException):
            asyncio.run(finish_and_die(home, models, upload_id, point))
            os._exit(0)
        os._exit(1)
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, f"the child failed: {status}"
    was_there = asyncio.run(judge(home, models, upload_id))
    return was_there if os.WIFSIGNALED(status) else None


def main(directory: Path, step: int) -> None:
    model = directory / "model"
    model.mkdir(parents=True)
    (model / "config.json").write_text('{"architectures": ["Tiny"], "max_position_embeddings": 128}')
    outcomes: list[bool] = []
    point = 0
    while (found := crash(directory / f"{point}", {"tiny": model}, point)) is not None:
        outcomes.append(found)
        point += step
    assert False in outcomes and True in outcomes, outcomes
    print(f"{len(outcomes)} kills, {sum(outcomes)} with a whole checkpoint")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
