"""What the next server makes of the samples of one that died, or stopped."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path

import pytest

from chockstone.backends.protocol import WorkerLost
from chockstone.checkpoints import Store
from chockstone.engine.config import EngineLimits
from chockstone.engine.futures import Result
from chockstone.engine.journal.journal import JournalTooNew
from chockstone.engine.journal.writer import Stalled, wait_until_durable
from chockstone.engine.samples import sampling as sampling_module
from chockstone.engine.samples.completions import CLONE_SPAN
from chockstone.engine.samples.journal import SampleJournal
from chockstone.wire.failures import BadRequest
from support.engine.fake_backend import FakeBackend
from support.engine.making import settle_down, until
from support.engine.sampling_lives import BASE, SOURCE, Life, life


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "samples"


@pytest.fixture
def new(store: Store) -> FakeBackend:
    """The worker of the next server."""
    return FakeBackend(store)


async def until_called(server: Life, times: int) -> None:
    await until(lambda: len(server.backend.values_of("sample")) == times)


async def crash_under_way(directory: Path, backend: FakeBackend, name: str) -> Path:
    """A server that dies while it runs what it has found, or one sample if it finds nothing."""
    async with life(directory, backend, grace_seconds=0) as server:
        backend.hold("sample")
        if not directory.exists():
            await server.submit(0)
        await until(lambda: backend.calls)
        await settle_down()
        return server.crashed(name)


async def test_a_request_is_on_record_when_its_client_is_told(
    directory: Path, backend: FakeBackend, new: FakeBackend
) -> None:
    async with life(directory, backend) as server:
        backend.hold("sample")
        submitted = await server.submit(7, body=b"the very bytes")
        crashed = server.crashed("next")
        backend.let_go("sample")
        first = await server.result(submitted.request_id)

    async with life(crashed, new) as server:
        assert await server.result(submitted.request_id) == first
        assert new.calls == backend.calls


async def test_a_result_that_was_told_is_told_again_and_not_computed_again(
    directory: Path, backend: FakeBackend, new: FakeBackend
) -> None:
    async with life(directory, backend) as server:
        submitted = await server.submit(0)
        result = await server.result(submitted.request_id)
        crashed = server.crashed("next")

    async with life(crashed, new) as server:
        assert await server.result(submitted.request_id) == result
        assert await server.submit(0) == submitted
        assert new.calls == []
        assert server.usage == []


async def test_a_failure_is_told_again_too(directory: Path, backend: FakeBackend, new: FakeBackend) -> None:
    async with life(directory, backend) as server:
        backend.fail_next("sample", BadRequest("max_tokens must be positive"))
        submitted = await server.submit(0)
        await server.result(submitted.request_id)

    async with life(directory, new) as server:
        assert (await server.error(submitted.request_id))["error"] == "max_tokens must be positive"


async def test_a_repeat_of_an_unfinished_request_gets_its_id_and_is_run_once(
    directory: Path, backend: FakeBackend, new: FakeBackend
) -> None:
    crashed = await crash_under_way(directory, backend, "next")

    async with life(crashed, new) as server:
        again = await server.submit(0)

        assert again.request_id == "s:sample:0:0"
        assert not (await server.result(again.request_id)).is_failure
        assert len(new.values_of("sample")) == 1
        assert len(server.usage) == 1


async def test_a_request_without_a_number_keeps_its_id_and_seed(
    directory: Path, backend: FakeBackend, new: FakeBackend
) -> None:
    async with life(directory, backend) as server:
        backend.hold("sample")
        submitted = await server.submit(None, source=BASE)
        await until_called(server, 1)
        crashed = server.crashed("next")
        backend.let_go("sample")

    async with life(crashed, new) as server:
        assert not (await server.result(submitted.request_id)).is_failure
        assert new.values_of("sample") == backend.values_of("sample")


async def test_what_is_submitted_before_the_journal_is_read_waits_for_it(
    directory: Path, backend: FakeBackend, new: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with life(directory, backend) as server:
        submitted = await server.submit(0)
        await server.result(submitted.request_id)
    opening, read = asyncio.Event(), asyncio.Event()
    reading = SampleJournal.read_result

    async def slowly(journal: SampleJournal, found: object) -> Result | None:
        opening.set()
        await read.wait()
        return await reading(journal, found)  # type: ignore[arg-type]  # what it was given

    monkeypatch.setattr(SampleJournal, "read_result", slowly)
    starting = life(directory, new)
    entering = asyncio.create_task(starting.__aenter__())
    await opening.wait()
    assert not entering.done()
    read.set()
    server = await entering

    assert await server.submit(0) == submitted
    assert new.calls == []
    await starting.__aexit__(None, None, None)


async def test_a_journal_that_takes_too_long_to_read_is_a_stall(
    directory: Path, backend: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with life(directory, backend) as server:
        monkeypatch.setattr(sampling_module, "STALL_SECONDS", 0.01)
        server.sampling.recovered.clear()

        with pytest.raises(Stalled, match="before the restart"):
            await server.submit(0)


async def test_completions_of_an_earlier_server_are_told_whatever_cursor_the_client_has(
    directory: Path, backend: FakeBackend, new: FakeBackend
) -> None:
    async with life(directory, backend) as server:
        submitted = [await server.submit(seq_id) for seq_id in (0, 1, CLONE_SPAN)]
        await server.sampling.drained()
        _, cursor = await server.sampling.feed(SOURCE.sampling_session_id, 0).after(0, 0)
        assert cursor == 2

    async with life(directory, new) as server:
        expected = [submitted[0].request_id, submitted[1].request_id]
        for old in (0, 1, 2, 99):
            assert await server.completed(cursor=old) == expected
        assert await server.completed(clone=1) == [submitted[2].request_id]
        _, cursor = await server.sampling.feed(SOURCE.sampling_session_id, 0).after(0, 0)
        assert await server.completed(cursor=cursor) == []


async def test_a_client_of_a_lost_journal_is_known_by_its_cursor(
    tmp_path: Path, directory: Path, backend: FakeBackend, new: FakeBackend
) -> None:
    async with life(directory, backend, now=2e9) as server:
        _, cursor = await server.sampling.feed(SOURCE.sampling_session_id, 0).after(0, 60)
        await server.submit(0)
        crashed = server.crashed("next")

    async with life(crashed, new, now=2e9 + 5) as server:
        assert server.sampling.feed(SOURCE.sampling_session_id, 0).knows(cursor)
    async with life(tmp_path / "empty", new, now=2e9 + 5) as server:
        assert not server.sampling.feed(SOURCE.sampling_session_id, 0).knows(cursor)
        assert server.sampling.feed(SOURCE.sampling_session_id, 0).knows(0)


async def test_records_go_a_while_after_a_result_was_delivered(
    directory: Path, backend: FakeBackend, new: FakeBackend
) -> None:
    async with life(directory, backend) as server:
        fetched, unfetched = await server.submit(0), await server.submit(1)
        await server.sampling.drained()
        server.deliver(fetched.request_id)
        server.pass_seconds(59)
        before = server.crashed("before")
        server.pass_seconds(2)

    async with life(before, new) as server:
        assert server.futures.get(fetched.request_id) is not None
    async with life(directory, new) as server:
        assert server.futures.get(fetched.request_id) is None
        assert server.futures.get(unfetched.request_id) is not None


async def test_results_of_an_earlier_server_go_as_if_they_had_just_been_delivered(
    directory: Path, backend: FakeBackend, new: FakeBackend
) -> None:
    async with life(directory, backend) as server:
        submitted = await server.submit(0)
        await server.sampling.drained()

    async with life(directory, new) as server:
        assert server.futures.get(submitted.request_id) is not None
        server.pass_seconds(61)

    async with life(directory, new) as server:
        assert server.futures.get(submitted.request_id) is None


async def test_a_cancelled_sample_stays_cancelled(directory: Path, backend: FakeBackend, new: FakeBackend) -> None:
    async with life(directory, backend) as server:
        backend.hold("sample")
        submitted = await server.submit(0)
        server.sampling.cancel(submitted.request_id)
        backend.let_go("sample")

    async with life(directory, new) as server:
        assert (await server.error(submitted.request_id))["error"] == "the sample was cancelled"
        assert new.calls == []


async def test_a_sample_cancelled_while_its_result_is_written_stays_cancelled(
    directory: Path, backend: FakeBackend, new: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with life(directory, backend) as server:
        settle = SampleJournal.settle

        def cancel_then(*arguments: object, **facts: object) -> asyncio.Future[None]:
            monkeypatch.setattr(SampleJournal, "settle", settle)
            durable: asyncio.Future[None] = settle(*arguments, **facts)  # type: ignore[arg-type]  # what it was given
            server.sampling.cancel("s:sample:0:0")
            return durable

        monkeypatch.setattr(SampleJournal, "settle", cancel_then)
        submitted = await server.submit(0)
        assert (await server.error(submitted.request_id))["error"] == "the sample was cancelled"

    async with life(directory, new) as server:
        assert (await server.error(submitted.request_id))["error"] == "the sample was cancelled"


async def test_samples_whose_weights_are_gone_end_as_a_failure(
    directory: Path, backend: FakeBackend, new: FakeBackend
) -> None:
    crashed = await crash_under_way(directory, backend, "next")
    new.fail_next("sample", BadRequest("not in the store", code="missing"))

    async with life(crashed, new) as server:
        assert (await server.error("s:sample:0:0"))["error"].startswith("the weights of this sampler are gone")


async def test_a_sample_that_takes_the_server_down_again_and_again_is_failed_by_name(
    directory: Path, store: Store, new: FakeBackend
) -> None:
    for name in "1234":
        directory = await crash_under_way(directory, FakeBackend(store), name)

    for _ in range(2):
        async with life(directory, new, limits=EngineLimits(attempts=4)) as server:
            error = await server.error("s:sample:0:0")
            assert error["error"].startswith("the sample was under way when the server died, 4 times")
            assert new.calls == []


async def test_a_sample_that_killed_workers_before_the_restart_has_not_many_left(
    directory: Path, backend: FakeBackend, new: FakeBackend
) -> None:
    async with life(directory, backend, grace_seconds=0) as server:
        backend.hold("sample")
        submitted = await server.submit(0)
        for deaths in (1, 2):
            await until_called(server, deaths)
            backend.die("signal 11")
            backend.hold("sample")
        await until_called(server, 3)
        crashed = server.crashed("next")

    new.fail_next("sample", WorkerLost("signal 11"))
    async with life(crashed, new) as server:
        assert "killed the worker 3 times" in (await server.error(submitted.request_id))["error"]


async def test_a_server_that_dies_before_its_worker_is_ready_is_nobodys_doing(
    directory: Path, backend: FakeBackend, new: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = await crash_under_way(directory, backend, "0")

    async def loads_for_ever() -> None:
        return None

    monkeypatch.setattr(backend, "start", loads_for_ever)
    backend.is_ready = False
    for name in "12345":
        async with life(directory, backend, grace_seconds=0) as server:
            await settle_down()
            directory = server.crashed(name)

    async with life(directory, new, limits=EngineLimits(attempts=2)) as server:
        assert not (await server.result("s:sample:0:0")).is_failure


async def test_stopping_in_good_order_is_held_against_nobody(directory: Path, store: Store, new: FakeBackend) -> None:
    for unused in "12345":
        await crash_under_way(directory, FakeBackend(store), unused)

    async with life(directory, new, limits=EngineLimits(attempts=2)) as server:
        assert not (await server.result("s:sample:0:0")).is_failure


async def test_a_server_that_stops_lets_go_of_long_samples_and_the_next_one_finishes_them(
    directory: Path, backend: FakeBackend, new: FakeBackend
) -> None:
    async with life(directory, backend, grace_seconds=0) as server:
        backend.hold("sample")
        submitted = await server.submit(0)
        await until_called(server, 1)
        promise = server.futures.get(submitted.request_id)
    assert promise is not None and not promise.is_done()
    assert backend.values_of("cancel") == [{"key": submitted.request_id}]

    async with life(directory, new) as server:
        assert not (await server.result(submitted.request_id)).is_failure


async def test_a_server_that_stops_finishes_short_samples(
    directory: Path, backend: FakeBackend, new: FakeBackend
) -> None:
    async with life(directory, backend) as server:
        submitted = await server.submit(0)

    async with life(directory, new) as server:
        assert not (await server.result(submitted.request_id)).is_failure
    assert new.calls == []


async def test_samples_that_wait_for_a_worker_that_will_not_come_are_left_to_the_next_server(
    directory: Path, backend: FakeBackend, new: FakeBackend
) -> None:
    async with life(directory, backend) as server:
        backend.is_ready = False
        submitted = await server.submit(0)
        await backend.stop()
        await server.sampling.drained()
        promise = server.futures.get(submitted.request_id)
        assert promise is not None and not promise.is_done()

    async with life(directory, new) as server:
        assert not (await server.result(submitted.request_id)).is_failure


async def test_a_request_that_is_damaged_ends_as_a_failure_that_says_so(
    directory: Path, backend: FakeBackend, new: FakeBackend
) -> None:
    crashed = await crash_under_way(directory, backend, "next")
    [segment] = crashed.iterdir()
    segment.write_bytes(segment.read_bytes().replace(b"prompt", b"Prompt"))

    async with life(crashed, new) as server:
        assert (await server.error("s:sample:0:0"))["error"].startswith("the request was lost with its record")
        assert new.calls == []


async def test_a_result_that_is_damaged_is_computed_again(
    directory: Path, backend: FakeBackend, new: FakeBackend
) -> None:
    async with life(directory, backend) as server:
        submitted = await server.submit(0)
        result = await server.result(submitted.request_id)
    for segment in directory.iterdir():
        segment.write_bytes(segment.read_bytes().replace(b"sampled", b"Sampled"))

    async with life(directory, new) as server:
        assert await server.result(submitted.request_id) == result
        assert len(new.calls) == 1


async def test_a_sample_that_ends_in_a_bug_of_ours_is_told_so(
    directory: Path, backend: FakeBackend, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError("a bug")

    async with life(directory, backend) as server:
        monkeypatch.setattr(SampleJournal, "settle", fail)
        submitted = await server.submit(0)

        assert (await server.error(submitted.request_id))["error"] == "ZeroDivisionError: a bug"
    assert "sample not ended request=s:sample:0:0" in caplog.text


async def test_a_journal_of_a_newer_version_is_refused_and_nothing_is_taken(
    directory: Path, backend: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(_: SampleJournal) -> None:
        raise JournalTooNew("made by a newer version")

    async with life(directory, backend) as server:
        server.sampling.recovered.clear()
        monkeypatch.setattr(SampleJournal, "open", refuse)

        with pytest.raises(JournalTooNew):
            await server.sampling.recover()

        monkeypatch.setattr(sampling_module, "STALL_SECONDS", 0.01)
        with pytest.raises(Stalled, match="samples cannot be taken: made by a newer version"):
            await server.submit(0)


def refuse(*_: object) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


async def test_a_result_is_told_when_it_is_on_record(
    directory: Path, backend: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with life(directory, backend) as server:
        backend.hold("sample")
        submitted = await server.submit(0)
        with monkeypatch.context() as full:
            full.setattr(os, "pwritev", refuse)
            backend.let_go("sample")
            await until(lambda: server.journal._writer.trouble)
            promise = server.futures.get(submitted.request_id)
            assert promise is not None and not promise.is_done()
            assert server.usage == []

        assert not (await server.result(submitted.request_id)).is_failure
        assert len(server.usage) == 1


class TestDiskFull:
    @pytest.fixture(autouse=True)
    def is_full(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(os, "pwritev", refuse)
        monkeypatch.setattr(
            "chockstone.engine.samples.journal.wait_until_durable",
            lambda durable, writer: wait_until_durable(durable, writer, timeout_seconds=self.patience_seconds),
        )

    patience_seconds = 0.2

    async def test_a_request_that_cannot_be_written_is_not_run_until_it_can(
        self, directory: Path, backend: FakeBackend, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with life(directory, backend) as server:
            with pytest.raises(Stalled, match="the disk is full"):
                await server.submit(0)
            with pytest.raises(Stalled, match="the disk is full"):
                await server.submit(0)
            assert backend.calls == []

            monkeypatch.undo()
            submitted = await server.submit(0)

            assert not (await server.result(submitted.request_id)).is_failure
            assert len(backend.values_of("sample")) == 1

    async def test_an_unnumbered_request_that_cannot_be_written_is_not_run_for_a_client_that_has_gone(
        self, directory: Path, backend: FakeBackend, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with life(directory, backend) as server:
            with pytest.raises(Stalled):
                await server.submit(None, source=BASE)
            monkeypatch.undo()
            await server.sampling.drained()

            assert backend.values_of("sample") == []
            assert server.sampling.waiting == 0
