"""A server on loopback, in a thread of this process: real routes, catalog and archives, on a backend of numbers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import uvicorn
from typer.testing import CliRunner, Result

from chockstone.cli.app import app
from chockstone.engine.config import StorageRules
from support.api.loopback_server import ServerThread, serving
from support.api.users import MODEL, User
from support.engine.gap_meter import ScriptedGapMeter
from support.served import Served, serve_in_process

T = TypeVar("T")


@dataclass
class Loopback:
    url: str
    home: Path
    served: Served
    _loop: asyncio.AbstractEventLoop

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """What it comes to, on the server's own loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def user(self) -> User:
        return User("local", self.served.http)

    def archive(self, path: str) -> Path:
        run_id, kind, name = path.removeprefix("tinker://").split("/")
        (found,) = (self.home / "checkpoints" / run_id.replace(":", ".") / kind).glob(f"{name}.*.tar")
        return found

    def run(self, *words: str | Path, key: str = "tml-local") -> Result:
        environment = {"TINKER_BASE_URL": self.url, "TINKER_API_KEY": key}
        return CliRunner().invoke(app, list(map(str, words)), env=environment, catch_exceptions=False)

    def json(self, *words: str | Path, key: str = "tml-local") -> Any:
        return json.loads(self.run(*words, "--json", key=key).stdout)


@contextmanager
def serve_on_loopback(
    home: Path,
    *,
    rules: StorageRules | None = None,
    keys: dict[str, str] | None = None,
    replicas: int = 1,
    gap_meter: ScriptedGapMeter | None = None,
) -> Iterator[Loopback]:
    """``keys`` by user; without, everyone is the local user."""

    @asynccontextmanager
    async def serve() -> AsyncIterator[Loopback]:
        model = home.parent / f"{home.name}-model"
        model.mkdir()
        (model / "config.json").write_text(json.dumps({"architectures": ["Tiny"], "max_position_embeddings": 128}))
        home.mkdir()
        async with serve_in_process(
            home, {MODEL: model}, rules=rules, keys=keys, replicas=replicas, gap_meter=gap_meter
        ) as served:
            config = uvicorn.Config(served.app, lifespan="off", log_config=None, timeout_graceful_shutdown=3)
            async with serving(config, waits_for_requests=True) as port:
                yield Loopback(f"http://127.0.0.1:{port}", home, served, asyncio.get_running_loop())

    with ServerThread(serve) as loopback:
        yield loopback
