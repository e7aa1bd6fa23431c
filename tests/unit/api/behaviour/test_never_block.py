"""Nothing that a request makes the server do blocks the event loop, and so all other requests.

Each path is checked as it is, and once more made inline, where the same check must fail. What the worker
does (copying, exporting, loading into a model) is another process's, and cannot hold this loop.
"""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import pytest_asyncio
import zstandard
from aiosqlite import core, cursor
from fastapi import FastAPI

from chockstone.api import bodies
from chockstone.api.documentation.openapi import OpenApiDocument
from chockstone.api.downloads import archive_response
from chockstone.api.downloads import routes as downloads
from chockstone.api.openai.chat import chat_completions
from chockstone.api.operations import run_metrics
from chockstone.api.tinker import checkpoints, futures, samplers, training
from chockstone.checkpoints import Archive
from chockstone.engine.config import StorageRules
from chockstone.engine.futures import Result
from chockstone.engine.history.history_file import HistoryFile
from chockstone.engine.history.run_history import RunHistory
from chockstone.engine.journal.segment_file import JournalEntry, SegmentFile
from chockstone.engine.journal.writer import JournalWriter
from chockstone.wire.failures import BadRequest
from chockstone.wire.messages.checkpoints import CheckpointsResponse
from support.api.users import MODEL, User, refusal, url_of
from support.loop_gate import HeldTheLoop, InlineExecutor, LoopGate, inline_to_thread
from support.postgres import IS_POSTGRES
from support.served import Served, serve_in_process

Patch = pytest.MonkeyPatch
LARGE = b"x" * (1 << 17)
METRICS = {"points": [{"step": 1, "values": {"reward": 0.5}}]}


@dataclasses.dataclass(slots=True)
class Scene:
    served: Served
    user: User
    gate: LoopGate
    patch: Patch

    def decoder(self, *_: Any) -> Any:
        """Takes its time, and then does not like what it sees."""
        self.gate.wait()
        raise BadRequest("decoded")

    async def refused(self, route: str, body: bytes, **headers: str) -> None:
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.gate.watch():
            answer = await self.user.http.post(route, content=body, headers=names)
        assert refusal(answer, 400) == "decoded"

    async def url(self) -> str:
        """Where an archive can be fetched from."""
        path = await self.user.save(await self.user.run(), "a")
        return str((await self.user.http.get(url_of(path, "archive"))).headers["location"])


async def decode_of_a_pass(scene: Scene) -> None:
    scene.patch.setattr(training, "peek_pass", scene.decoder)
    await scene.refused("forward_backward", LARGE, content_type="application/x-protobuf")


async def decode_of_a_pass_in_json(scene: Scene) -> None:
    scene.patch.setattr(training, "pass_from_json", scene.decoder)
    await scene.refused("forward_backward", b'{"x": "%s"}' % LARGE, content_type="application/json")


async def decode_of_a_prompt(scene: Scene) -> None:
    scene.patch.setattr(samplers, "peek_sample", scene.decoder)
    await scene.refused("asample", b'{"x": "%s"}' % LARGE)


async def read_of_a_conversation(scene: Scene) -> None:
    scene.patch.setattr(chat_completions, "read_chat_request", scene.decoder)
    async with scene.gate.watch():
        answer = await scene.user.http.post("http://localhost/v1/chat/completions", content=b'{"x": "%s"}' % LARGE)
    assert answer.json()["error"]["message"] == "decoded"


async def decompression(scene: Scene) -> None:
    scene.patch.setattr(bodies, "decompress", scene.decoder)
    await scene.refused("asample", zstandard.compress(LARGE), content_encoding="zstd")


async def result_as_json(scene: Scene) -> None:
    scene.patch.setattr(futures, "sample_result_json", scene.gate.before(lambda _: {}))
    async with scene.gate.watch():
        answer = await futures._respond(Result(LARGE, form="sample"), wants_protobuf=False)
    assert answer.body == b"{}"


async def long_list_of_checkpoints(scene: Scene) -> None:
    run_id = await scene.user.run()
    await scene.user.save(run_id, "a")
    scene.patch.setattr(checkpoints, "_BYTES_PER_ENTRY", len(LARGE))  # as if there were hundreds
    scene.patch.setattr(CheckpointsResponse, "encode", scene.gate.before(CheckpointsResponse.encode))
    async with scene.gate.watch():
        assert await scene.user.listed(run_id) == ["weights/a"]


async def query_of_the_catalog(scene: Scene) -> None:
    run_id = await scene.user.run()
    await scene.user.save(run_id, "a")
    execute = cursor.Cursor._execute

    async def gated(self: Any, work: Callable[..., Any], *values: Any, **options: Any) -> Any:
        return await execute(self, scene.gate.before(work), *values, **options)

    scene.patch.setattr(cursor.Cursor, "_execute", gated)
    async with scene.gate.watch():
        assert await scene.user.listed(run_id) == ["weights/a"]


async def save(scene: Scene) -> None:
    """The journal is on the disk before the request is acknowledged."""
    run_id = await scene.user.run()
    scene.patch.setattr(SegmentFile, "put", scene.gate.before(SegmentFile.put))
    async with scene.gate.watch():
        await scene.user.save(run_id, "a")


async def links_of_an_export(scene: Scene) -> None:
    path = await scene.user.save(await scene.user.run(), "a", kind="external_weights")
    store = type(scene.served.engine.storage.store)
    scene.patch.setattr(store, "open", scene.gate.before(store.open))
    async with scene.gate.watch():
        answer = await scene.user.http.get(url_of(path, "external_weights_urls"))
    assert answer.status_code == 200, answer.text


async def load_of_the_latest(scene: Scene) -> None:
    """It is verified before the worker is told of it."""
    run_id = await scene.user.run()
    path = await scene.user.save(run_id, "a")
    scene.patch.setattr(Archive, "check_block", scene.gate.before(Archive.check_block))
    asked = {"model_id": run_id, "seq_id": 90, "path": f"tinker://{run_id}/weights/latest", "optimizer": True}
    async with scene.gate.watch():
        loaded = await scene.user.result("load_weights", asked)
    assert loaded["path"] == path


async def digest(scene: Scene) -> None:
    path = await scene.user.save(await scene.user.run(), "a")
    scene.patch.setattr(Archive, "check_block", scene.gate.before(Archive.check_block))
    async with scene.gate.watch():
        answer = await scene.user.http.post(url_of(path, "verify"))
    assert answer.json() == {"state": "ready"}


async def mark_of_a_download(scene: Scene) -> None:
    url = await scene.url()
    scene.patch.setattr(downloads, "_etag", scene.gate.before(downloads._etag))
    async with scene.gate.watch():
        assert (await scene.user.http.get(url)).status_code == 200


async def body_of_a_download(scene: Scene) -> None:
    url = await scene.url()
    scene.patch.setattr(archive_response, "_NOWAIT", 0)  # as if the page cache had nothing of it
    scene.patch.setattr(archive_response, "_fill", scene.gate.before(archive_response._fill))
    async with scene.gate.watch():
        assert (await scene.user.http.get(url)).status_code == 200


async def end_of_a_download_that_is_known(scene: Scene) -> None:
    url = await scene.url()
    etag = (await scene.user.http.head(url)).headers["etag"]
    scene.patch.setattr(Archive, "close", scene.gate.before(Archive.close))
    async with scene.gate.watch():
        assert (await scene.user.http.get(url, headers={"If-None-Match": etag})).status_code == 304


async def openapi_document(scene: Scene) -> None:
    scene.patch.setattr(FastAPI, "openapi", scene.gate.before(FastAPI.openapi))
    async with scene.gate.watch():
        assert (await OpenApiDocument(scene.served.app).encoded()).startswith(b"{")


async def read_of_metrics(scene: Scene) -> None:
    run_id = await scene.user.run()
    await scene.user.http.post(f"training_runs/{run_id}/metrics", json=METRICS)
    scene.patch.setattr(RunHistory, "recent", lambda *_: None)  # as if there were thousands
    scene.patch.setattr(HistoryFile, "read", scene.gate.before(HistoryFile.read))
    async with scene.gate.watch():
        answer = await scene.user.http.get(f"training_runs/{run_id}/metrics")
    assert answer.json()["cursor"] == 1


async def metrics_as_csv(scene: Scene) -> None:
    run_id = await scene.user.run()
    await scene.user.http.post(f"training_runs/{run_id}/metrics", json=METRICS)
    scene.patch.setattr(run_metrics, "_SMALL", 0)  # the same
    scene.patch.setattr(run_metrics, "to_csv", scene.gate.before(run_metrics.to_csv))
    async with scene.gate.watch():
        answer = await scene.user.http.get(f"training_runs/{run_id}/metrics", params={"format": "csv"})
    assert answer.text.startswith("position,")


async def write_of_metrics(scene: Scene) -> None:
    run_id = await scene.user.run()
    scene.patch.setattr(HistoryFile, "replace", scene.gate.before(HistoryFile.replace))
    async with scene.gate.watch():
        answer = await scene.user.http.post(f"training_runs/{run_id}/metrics", json=METRICS)
    assert answer.json() == {"cursor": 1}


def inline_history(scene: Scene) -> None:
    scene.patch.setattr(scene.served.engine.history, "_thread", InlineExecutor())


def inline_threads(scene: Scene) -> None:
    inline_to_thread(scene.patch)


def inline_storage(scene: Scene) -> None:
    scene.patch.setattr(scene.served.engine.storage, "_threads", InlineExecutor())
    scene.patch.setattr(scene.served.engine.storage, "_readers", InlineExecutor())


def inline_sending(scene: Scene) -> None:
    scene.patch.setattr(archive_response, "_THREADS", InlineExecutor())


def inline_catalog(scene: Scene) -> None:
    async def execute(self: Any, work: Callable[..., Any], *values: Any, **options: Any) -> Any:
        return work(*values, **options)

    scene.patch.setattr(core.Connection, "_execute", execute)


def inline_journal(scene: Scene) -> None:
    def submit(self: JournalWriter, entry: JournalEntry) -> None:
        entry.file.put(entry)

    scene.patch.setattr(JournalWriter, "submit", submit)


Check = Callable[[Scene], Awaitable[None]]
PATHS: dict[Check, Callable[[Scene], None]] = {
    decode_of_a_pass: inline_threads,
    decode_of_a_pass_in_json: inline_threads,
    decode_of_a_prompt: inline_threads,
    read_of_a_conversation: inline_threads,
    decompression: inline_threads,
    result_as_json: inline_threads,
    long_list_of_checkpoints: inline_threads,
    **({} if IS_POSTGRES else {query_of_the_catalog: inline_catalog}),  # a thread is SQLite's; asyncpg has none
    save: inline_journal,
    links_of_an_export: inline_storage,
    load_of_the_latest: inline_storage,
    digest: inline_storage,
    mark_of_a_download: inline_threads,
    body_of_a_download: inline_sending,
    end_of_a_download_that_is_known: inline_threads,
    openapi_document: inline_threads,
    read_of_metrics: inline_threads,
    metrics_as_csv: inline_threads,
    write_of_metrics: inline_history,
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    """One for all: what is patched on it is as it was after each check."""
    home = tmp_path_factory.mktemp("home")
    (home / "model").mkdir()
    (home / "model" / "config.json").write_text("{}")
    async with serve_in_process(home, {MODEL: home / "model"}, rules=StorageRules(reserve_bytes=0)) as served:
        yield served


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("check", PATHS, ids=lambda check: check.__name__)
async def test_the_loop_goes_on_during(check: Check, server: Served, monkeypatch: Patch) -> None:
    await check(Scene(server, User("local", server.http), LoopGate(), monkeypatch))


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("check", PATHS, ids=lambda check: check.__name__)
async def test_the_check_fails_on_an_inline(check: Check, server: Served, monkeypatch: Patch) -> None:
    gate = LoopGate(guard_seconds=0.2)
    scene = Scene(server, User("local", server.http), gate, monkeypatch)
    watch = gate.watch

    def watch_inline() -> Any:
        PATHS[check](scene)  # only now: what leads up to the path is as it is
        return watch()

    monkeypatch.setattr(gate, "watch", watch_inline)
    with pytest.raises(HeldTheLoop):
        await check(scene)
