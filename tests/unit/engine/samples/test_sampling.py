from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import orjson
import pytest

from chockstone.backends.protocol import WorkerLost
from chockstone.checkpoints import Store
from chockstone.engine.config import Busy, EngineLimits
from chockstone.engine.futures import Futures, Result
from chockstone.engine.journal.journal import JournalWriter
from chockstone.engine.samples import sampling as sampling_module
from chockstone.engine.samples.completions import CLONE_SPAN
from chockstone.engine.samples.journal import SampleJournal
from chockstone.engine.samples.sampling import SamplerSource, Sampling, Submitted
from chockstone.telemetry.instruments import Instruments
from chockstone.wire.failures import BadRequest, ServerFailure
from support.engine.fake_backend import FakeBackend
from support.engine.making import settle_down, until
from support.engine.sampling_lives import BASE, SOURCE
from support.exposition import series_of


@pytest.fixture
def futures() -> Futures:
    return Futures(now=lambda: 0.0)


@pytest.fixture
async def writer() -> AsyncIterator[JournalWriter]:
    writer = JournalWriter(synced=False)
    yield writer
    await writer.close()


@pytest.fixture
async def backend(backend: FakeBackend) -> FakeBackend:
    await backend.start()
    return backend


@pytest.fixture(params=["journal", "no journal"])
async def journal(request: pytest.FixtureRequest, tmp_path: Path, writer: JournalWriter) -> SampleJournal | None:
    return SampleJournal(tmp_path / "journal", writer, now=lambda: 0.0) if request.param == "journal" else None


@pytest.fixture
async def sampling(
    backend: FakeBackend, futures: Futures, limits: EngineLimits, journal: SampleJournal | None
) -> AsyncIterator[Sampling]:
    sampling = Sampling(backend, futures, limits, journal)
    await sampling.recover()
    yield sampling
    backend.let_everything_go()
    await sampling.stop()


@pytest.fixture
def limits() -> EngineLimits:
    return EngineLimits()


async def submit(
    sampling: Sampling, seq_id: int | None = 0, *, source: SamplerSource = SOURCE, body: bytes = b"prompt"
) -> Submitted:
    return await sampling.submit(source, seq_id, body, num_samples=1)


async def result_of(futures: Futures, submitted: Submitted) -> Result:
    promise = futures.get(submitted.request_id)
    assert promise is not None
    result = await promise.wait(10)
    assert result is not None
    return result


async def error_of(futures: Futures, submitted: Submitted) -> dict[str, str]:
    result = await result_of(futures, submitted)
    assert result.is_failure
    error: dict[str, str] = orjson.loads(result.body)
    return error


async def completed(sampling: Sampling, clone: int = 0, *, source: SamplerSource = SOURCE) -> list[str]:
    found, _ = await sampling.feed(source.sampling_session_id, clone).after(0, 0)
    return [completion.request_id for completion in found]


async def test_a_sample_is_answered_with_what_the_backend_says(
    sampling: Sampling, futures: Futures, backend: FakeBackend
) -> None:
    submitted = await submit(sampling, 3)

    assert await result_of(futures, submitted) == Result(b"sampled prompt", "sample")
    ((word, values, body),) = backend.calls
    assert (word, body) == ("sample", b"prompt")
    assert values["key"] == submitted.request_id
    assert (values["base_model"], values["archive"]) == ("tiny", "s.sample.0/ephemeral")


async def test_samples_are_independent_of_each_other(
    sampling: Sampling, futures: Futures, backend: FakeBackend
) -> None:
    backend.hold("sample")
    stuck = await submit(sampling, 0)
    await until(lambda: backend.words() == ["sample"])
    held, backend._held = backend._held, {}

    assert not (await result_of(futures, await submit(sampling, 1))).is_failure
    held["sample"].set_result(None)
    assert not (await result_of(futures, stuck)).is_failure


async def test_a_repeat_gets_the_first_answer(sampling: Sampling, futures: Futures, backend: FakeBackend) -> None:
    first = await submit(sampling, 3)
    again = await submit(sampling, 3)
    await result_of(futures, first)

    assert await submit(sampling, 3) == first == again
    assert backend.words() == ["sample"]


async def test_a_request_is_known_by_its_sampling_session_and_number(
    sampling: Sampling, futures: Futures, backend: FakeBackend
) -> None:
    one, other = await submit(sampling, 3), await submit(sampling, 3, source=BASE)

    assert (one.request_id, other.request_id) == ("s:sample:0:3", "s:sample:1:3")
    await asyncio.gather(result_of(futures, one), result_of(futures, other))
    assert [values["archive"] for values in backend.values_of("sample")] == ["s.sample.0/ephemeral", None]


async def test_unnumbered_requests_are_all_different(
    sampling: Sampling, futures: Futures, backend: FakeBackend
) -> None:
    one, other = await submit(sampling, None), await submit(sampling, None)

    assert one != other
    await asyncio.gather(result_of(futures, one), result_of(futures, other))
    seeds = [values["seed"] for values in backend.values_of("sample")]
    assert seeds[0] != seeds[1]


async def test_a_repeat_gets_the_first_answer_as_long_as_that_is_there(
    sampling: Sampling, futures: Futures, backend: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampling_module, "_REMEMBERED", 2)
    submitted = [await submit(sampling, seq_id) for seq_id in range(3)]
    await sampling.drained()

    assert await submit(sampling, 0) == submitted[0]
    assert len(backend.calls) == 3


async def test_the_oldest_repeats_are_forgotten_once_their_answers_are_gone(
    sampling: Sampling, futures: Futures, backend: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampling_module, "_REMEMBERED", 2)
    submitted = [await submit(sampling, seq_id) for seq_id in range(3)]
    await sampling.drained()
    for each in submitted:
        futures.forget(each.request_id)

    again = [await submit(sampling, seq_id) for seq_id in (2, 1, 0)]
    await sampling.drained()

    assert again == submitted[::-1]
    assert [values["key"] for values in backend.values_of("sample")][3:] == [submitted[0].request_id]


async def test_every_sequence_of_every_request_has_an_id_of_its_own(sampling: Sampling) -> None:
    submitted = [await sampling.submit(SOURCE, seq_id, b"", num_samples=4) for seq_id in range(3)]
    sequence_ids = [sequence_id for request in submitted for sequence_id in request.sequence_ids]

    assert [len(request.sequence_ids) for request in submitted] == [4, 4, 4]
    assert len(set(sequence_ids)) == 12
    await sampling.drained()


async def test_seeds_depend_on_the_session_and_number_alone(store: Store) -> None:
    async def seeds() -> list[int]:
        backend = FakeBackend(store)
        await backend.start()
        sampling = Sampling(backend, Futures(now=lambda: 0.0), EngineLimits())
        for source in (SOURCE, BASE):
            for seq_id in (0, 1, CLONE_SPAN):
                await submit(sampling, seq_id, source=source)
        await sampling.drained()
        return [values["seed"] for values in backend.values_of("sample")]

    first = await seeds()

    assert await seeds() == first
    assert len(set(first)) == 6
    assert all(0 <= seed < 2**63 for seed in first)


async def test_a_sample_that_fails_says_whose_fault_it_was(
    sampling: Sampling, futures: Futures, backend: FakeBackend
) -> None:
    backend.fail_next("sample", BadRequest("max_tokens must be positive"))
    assert await error_of(futures, await submit(sampling, 0)) == {
        "error": "max_tokens must be positive",
        "category": "user",
    }

    backend.fail_next("sample", ServerFailure("logits are NaN"))
    assert await error_of(futures, await submit(sampling, 1)) == {"error": "logits are NaN", "category": "server"}

    assert not (await result_of(futures, await submit(sampling, 2))).is_failure


async def test_an_unexpected_error_is_told_and_logged(
    sampling: Sampling, futures: Futures, backend: FakeBackend, caplog: pytest.LogCaptureFixture
) -> None:
    backend.fail_next("sample", ZeroDivisionError("a bug"))

    assert (await error_of(futures, await submit(sampling)))["error"] == "ZeroDivisionError: a bug"
    assert "sample failed sampler=s:sample:0" in caplog.text


async def test_a_cancelled_sample_ends_at_once_and_the_backend_is_told(
    sampling: Sampling, futures: Futures, backend: FakeBackend
) -> None:
    backend.hold("sample")
    submitted = await submit(sampling)
    await until(lambda: backend.words() == ["sample"])

    sampling.cancel(submitted.request_id)

    promise = futures.get(submitted.request_id)
    assert promise is not None and promise.is_done()
    assert await error_of(futures, submitted) == {"error": "the sample was cancelled", "category": "user"}
    await settle_down()
    assert backend.values_of("cancel") == [{"key": submitted.request_id}]


async def test_what_a_cancelled_sample_yields_in_the_end_is_told_to_nobody(
    sampling: Sampling, futures: Futures, backend: FakeBackend
) -> None:
    backend.hold("sample")
    submitted = await submit(sampling)
    await until(lambda: backend.words() == ["sample"])
    sampling.cancel(submitted.request_id)

    backend.let_go("sample")
    await sampling.drained()

    assert (await result_of(futures, submitted)).is_failure
    assert await completed(sampling) == [submitted.request_id]
    assert sampling.waiting == 0


async def test_cancelling_what_is_done_or_unknown_changes_nothing(
    sampling: Sampling, futures: Futures, backend: FakeBackend
) -> None:
    submitted = await submit(sampling)
    result = await result_of(futures, submitted)
    await sampling.drained()

    sampling.cancel(submitted.request_id)
    sampling.cancel("never heard of")
    await settle_down()

    assert await result_of(futures, submitted) == result
    assert "cancel" not in backend.words()


async def test_a_worker_that_died_need_not_be_told_of_a_cancellation(sampling: Sampling, backend: FakeBackend) -> None:
    backend.hold("sample")
    submitted = await submit(sampling)
    await until(lambda: backend.words() == ["sample"])
    backend.fail_next("cancel", WorkerLost("signal 9"))

    sampling.cancel(submitted.request_id)
    backend.let_go("sample")

    await sampling.drained()


@pytest.mark.parametrize("limits", [EngineLimits(samples=3)])
async def test_too_many_samples_are_busy_until_some_are_done(
    sampling: Sampling, futures: Futures, backend: FakeBackend
) -> None:
    backend.hold("sample")
    first = await submit(sampling, 0)
    await submit(sampling, 1)

    with pytest.raises(Busy, match="2 of your samples are queued, and 2 in all"):
        await submit(sampling, 2)
    assert await submit(sampling, 0) == first  # a repeat asks for nothing new

    backend.let_go("sample")
    await sampling.drained()
    assert not (await result_of(futures, await submit(sampling, 2))).is_failure


@pytest.mark.parametrize("limits", [EngineLimits(samples=16, queued_bytes=1000)])
@pytest.mark.parametrize("size_bytes", [1, 200])
async def test_one_user_does_not_fill_the_queue_for_another(
    sampling: Sampling, backend: FakeBackend, size_bytes: int
) -> None:
    backend.hold("sample")
    taken = 0
    with pytest.raises(Busy):
        while True:
            await submit(sampling, taken, body=bytes(size_bytes))
            taken += 1

    bob = SamplerSource("b:sample:0", "bob", "tiny", None)
    await submit(sampling, 0, source=bob, body=bytes(size_bytes))

    assert taken == (12 if size_bytes == 1 else 3)
    await until(lambda: len(backend.values_of("sample")) == taken + 1)
    assert backend.values_of("sample")[-1]["owner"] == "bob"
    backend.let_go("sample")


@pytest.mark.parametrize("limits", [EngineLimits(queued_bytes=10)])
async def test_bodies_that_wait_count_against_the_servers_memory(sampling: Sampling, backend: FakeBackend) -> None:
    backend.hold("sample")
    await submit(sampling, 0, body=b"12345")

    with pytest.raises(Busy):
        await submit(sampling, 1, body=b"123456")

    backend.let_go("sample")
    await sampling.drained()
    await submit(sampling, 1, body=b"123456")


async def test_each_clone_learns_of_its_own_samples(sampling: Sampling) -> None:
    mine, other = await submit(sampling, 5), await submit(sampling, 3 * CLONE_SPAN + 5)
    elsewhere = await submit(sampling, 5, source=BASE)
    await sampling.drained()

    assert await completed(sampling, 0) == [mine.request_id]
    assert await completed(sampling, 3) == [other.request_id]
    assert await completed(sampling, 1) == []
    assert await completed(sampling, 0, source=BASE) == [elsewhere.request_id]


async def test_a_completion_is_told_when_its_result_is_there(
    sampling: Sampling, futures: Futures, backend: FakeBackend
) -> None:
    backend.fail_next("sample", BadRequest("no"))
    failed = await submit(sampling, 0)
    await sampling.drained()
    submitted = await submit(sampling, 1)

    found, _ = await sampling.feed("s:sample:0", 0).after(1, 10)

    result = await result_of(futures, submitted)
    assert [(c.request_id, c.size_bytes, c.is_failure) for c in found] == [
        (submitted.request_id, len(result.body), False)
    ]
    everything, _ = await sampling.feed("s:sample:0", 0).after(0, 0)
    assert [(c.request_id, c.is_failure) for c in everything] == [
        (failed.request_id, True),
        (submitted.request_id, False),
    ]


async def test_feeds_of_a_finished_session_are_forgotten(sampling: Sampling) -> None:
    await submit(sampling, 0)
    other = await submit(sampling, 0, source=BASE)
    await sampling.drained()

    sampling.forget_feeds({"s:sample:0"})

    assert await completed(sampling) == []
    assert await completed(sampling, source=BASE) == [other.request_id]


async def test_everyone_who_waits_for_completions_can_be_answered(sampling: Sampling) -> None:
    waiting = [asyncio.create_task(sampling.feed("s:sample:0", clone).after(0, 60)) for clone in (0, 1)]
    await asyncio.sleep(0)

    sampling.wake_all()

    assert await asyncio.wait_for(asyncio.gather(*waiting), 10) == [([], 0), ([], 0)]


async def test_who_waits_for_samples_of_a_finished_session_waits_until_time_is_up(sampling: Sampling) -> None:
    feed = sampling.feed("s:sample:0", 0)
    _, cursor = await feed.after(0, 0)
    waiting = asyncio.create_task(feed.after(cursor, 60))
    await settle_down()

    sampling.forget_feeds({"s:sample:0"})
    await settle_down()

    assert not waiting.done(), "the SDK would log an error"
    assert sampling.feed("s:sample:0", 0) is not feed
    waiting.cancel()


async def test_without_a_journal_a_sample_that_no_worker_will_run_ends_as_a_failure(
    backend: FakeBackend, futures: Futures
) -> None:
    sampling = Sampling(backend, futures, EngineLimits())
    backend.is_ready = False
    submitted = await submit(sampling)

    await backend.stop()

    assert (await error_of(futures, submitted))["error"] == "the sample was not finished: the worker was stopped"


async def test_without_a_journal_a_server_that_stops_finishes_what_is_under_way(
    backend: FakeBackend, futures: Futures
) -> None:
    sampling = Sampling(backend, futures, EngineLimits())
    backend.hold("sample")
    submitted = await submit(sampling)
    stopping = asyncio.create_task(sampling.stop(grace_seconds=0))
    await settle_down()
    assert not stopping.done()

    backend.let_go("sample")
    await stopping

    assert not (await result_of(futures, submitted)).is_failure


async def test_samples_count_with_their_outcome_and_tokens(backend: FakeBackend, futures: Futures) -> None:
    instruments = Instruments()
    sampling = Sampling(backend, futures, EngineLimits(), instruments=instruments)
    await backend.start()
    await result_of(futures, await submit(sampling, 0))
    backend.fail_next("sample", BadRequest("no"))
    await error_of(futures, await submit(sampling, 1))
    await sampling.drained()

    found = series_of(instruments.render())
    assert found['chockstone_operations_total{operation="sample", outcome="ok"}'] == 1
    assert found['chockstone_operations_total{operation="sample", outcome="user_error"}'] == 1
    assert found['chockstone_operation_seconds_count{operation="sample"}'] == 2
    assert found["chockstone_sampled_tokens_total"] > 0
    assert found["chockstone_prompt_tokens_total"] > 0
    assert sampling.queued_bytes == 0
