"""A server on loopback, in a thread of this process: real routes, catalog and archives, on a backend of numbers."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import uvicorn
from typer.testing import CliRunner, Result

from chockstone.api.context import Context
from chockstone.api.users import UserDirectory
from chockstone.cli.app import app
from chockstone.engine.config import StorageRules
from support.api.users import MODEL, User
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
    home: Path, *, rules: StorageRules | None = None, keys: dict[str, str] | None = None
) -> Iterator[Loopback]:
    """``keys`` by user; without, everyone is the local user."""
    ready: list[Loopback] = []
    failures: list[BaseException] = []
    stopped: list[asyncio.Event] = []
    is_up = threading.Event()

    async def serve() -> None:
        model = home.parent / f"{home.name}-model"
        model.mkdir()
        (model / "config.json").write_text(json.dumps({"architectures": ["Tiny"], "max_position_embeddings": 128}))
        home.mkdir()
        stopped.append(asyncio.Event())
        async with serve_in_process(home, {MODEL: model}, rules=rules) as served:
            context: Context = served.app.state.context
            if keys:
                context.users = UserDirectory(keys, secret=b"s" * 32, now=lambda: datetime.now(UTC))
                context.config = replace(context.config, keys=keys)
            server = uvicorn.Server(
                uvicorn.Config(served.app, port=0, lifespan="off", log_config=None, timeout_graceful_shutdown=3)
            )
            serving = asyncio.create_task(server.serve())
            while not server.started:
                await asyncio.sleep(0.005)
            port = server.servers[0].sockets[0].getsockname()[1]
            ready.append(Loopback(f"http://127.0.0.1:{port}", home, served, asyncio.get_running_loop()))
            is_up.set()
            await stopped[0].wait()
            server.should_exit = True
            await serving

    def run() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:
            failures.append(error)
            is_up.set()

    thread = threading.Thread(target=run)
    thread.start()
    assert is_up.wait(60)
    if failures:
        raise failures[0]
    loopback = ready[0]
    try:
        yield loopback
    finally:
        loopback._loop.call_soon_threadsafe(stopped[0].set)
        thread.join(60)
    if failures:
        raise failures[0]
