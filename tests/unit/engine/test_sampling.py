from __future__ import annotations

import asyncio

import orjson
import pytest

from chockstone.backends.local import WorkerLost
from chockstone.checkpoints import Store
from chockstone.engine import sampling as sampling_module
from chockstone.engine.completions import CLONE_SPAN
from chockstone.engine.futures import Futures, Result
from chockstone.engine.limits import Busy, Limits
from chockstone.engine.sampling import SamplerSource, Sampling, Submitted
from chockstone.wire.failures import BadRequest, ServerFailure

from .fake_backend import FakeBackend
from .making import settle_down

SOURCE = SamplerSource("s:sample:0", "local", "tiny", "s.sample.0/ephemeral")
BASE = SamplerSource("s:sample:1", "local", "tiny", None)


@pytest.fixture
def futures() -> Futures:
    return Futures(now=lambda: 0.0)


@pytest.fixture
def sampling(backend: FakeBackend, futures: Futures) -> Sampling:
    return Sampling(backend, futures, Limits())


def submit(
    sampling: Sampling, seq_id: int | None = 0, *, source: SamplerSource = SOURCE, body: bytes = b"prompt"
) -> Submitted:
    return sampling.submit(source, seq_id, body, num_samples=1)


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
    submitted = submit(sampling, 3)

    assert await result_of(futures, submitted) == Result(b"sampled prompt", "sample")
    ((word, values, body),) = backend.calls
    assert (word, body) == ("sample", b"prompt")
    assert values["key"] == submitted.request_id
    assert (values["base_model"], values["archive"]) == ("tiny", "s.sample.0/ephemeral")


async def test_samples_are_independent_of_each_other(
    sampling: Sampling, futures: Futures, backend: FakeBackend
) -> None:
    backend.hold("sample")
    stuck = submit(sampling, 0)
    await settle_down()
    held, backend._held = backend._held, {}

    assert not (await result_of(futures, submit(sampling, 1))).is_failure
    held["sample"].set_result(None)
    assert not (await result_of(futures, stuck)).is_failure


async def test_a_repeat_gets_the_first_answer(sampling: Sampling, futures: Futures, backend: FakeBackend) -> None:
    first = submit(sampling, 3)
    again = submit(sampling, 3)
    await result_of(futures, first)

    assert submit(sampling, 3) == first == again
    assert backend.words() == ["sample"]


async def test_a_number_belongs_to_its_sampling_session(
    sampling: Sampling, futures: Futures, backend: FakeBackend
) -> None:
    one, other = submit(sampling, 3), submit(sampling, 3, source=BASE)

    assert one != other
    await asyncio.gather(result_of(futures, one), result_of(futures, other))
    assert [values["archive"] for values in backend.values_of("sample")] == ["s.sample.0/ephemeral", None]


async def test_unnumbered_requests_are_all_different(
    sampling: Sampling, futures: Futures, backend: FakeBackend
) -> None:
    one, other = submit(sampling, None), submit(sampling, None)

    assert one != other
    await asyncio.gather(result_of(futures, one), result_of(futures, other))
    seeds = [values["seed"] for values in backend.values_of("sample")]
    assert seeds[0] != seeds[1]


async def test_the_oldest_repeats_are_forgotten(sampling: Sampling, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling_module, "_REMEMBERED", 2)
    first = [submit(sampling, seq_id) for seq_id in range(3)]

    assert [submit(sampling, seq_id) == first[seq_id] for seq_id in (2, 1, 0)] == [True, True, False]
    await sampling.drained()


async def test_every_sequence_of_every_request_has_an_id_of_its_own(sampling: Sampling) -> None:
    submitted = [sampling.submit(SOURCE, seq_id, b"", num_samples=4) for seq_id in range(3)]
    sequence_ids = [sequence_id for request in submitted for sequence_id in request.sequence_ids]

    assert [len(request.sequence_ids) for request in submitted] == [4, 4, 4]
    assert len(set(sequence_ids)) == 12
    await sampling.drained()


async def test_seeds_depend_on_the_session_and_number_alone(futures: Futures, store: Store) -> None:
    async def seeds() -> list[int]:
        backend = FakeBackend(store)
        sampling = Sampling(backend, futures, Limits())
        for source in (SOURCE, BASE):
            for seq_id in (0, 1, CLONE_SPAN):
                submit(sampling, seq_id, source=source)
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
    assert await error_of(futures, submit(sampling, 0)) == {"error": "max_tokens must be positive", "category": "user"}

    backend.fail_next("sample", ServerFailure("logits are NaN"))
    assert await error_of(futures, submit(sampling, 1)) == {"error": "logits are NaN", "category": "server"}

    assert not (await result_of(futures, submit(sampling, 2))).is_failure


async def test_a_sample_whose_worker_died_is_asked_for_once_more(
    sampling: Sampling, futures: Futures, backend: FakeBackend
) -> None:
    backend.fail_next("sample", WorkerLost("signal 9"))

    assert not (await result_of(futures, submit(sampling, 0))).is_failure


async def test_an_unexpected_error_is_told_and_logged(
    sampling: Sampling, futures: Futures, backend: FakeBackend, caplog: pytest.LogCaptureFixture
) -> None:
    backend.fail_next("sample", ZeroDivisionError("a bug"))

    assert (await error_of(futures, submit(sampling)))["error"] == "ZeroDivisionError: a bug"
    assert "sample failed sampler=s:sample:0" in caplog.text


async def test_a_cancelled_sample_ends_at_once_and_the_backend_is_told(
    sampling: Sampling, futures: Futures, backend: FakeBackend
) -> None:
    backend.hold("sample")
    submitted = submit(sampling)
    await settle_down()

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
    submitted = submit(sampling)
    await settle_down()
    sampling.cancel(submitted.request_id)

    backend.let_go("sample")
    await sampling.drained()

    assert (await result_of(futures, submitted)).is_failure
    assert await completed(sampling) == [submitted.request_id]
    assert sampling.waiting == 0


async def test_cancelling_what_is_done_or_unknown_changes_nothing(
    sampling: Sampling, futures: Futures, backend: FakeBackend
) -> None:
    submitted = submit(sampling)
    result = await result_of(futures, submitted)
    await sampling.drained()

    sampling.cancel(submitted.request_id)
    sampling.cancel("never heard of")
    await settle_down()

    assert await result_of(futures, submitted) == result
    assert "cancel" not in backend.words()


async def test_a_worker_that_died_need_not_be_told_of_a_cancellation(sampling: Sampling, backend: FakeBackend) -> None:
    backend.hold("sample")
    submitted = submit(sampling)
    await settle_down()
    backend.fail_next("cancel", WorkerLost("signal 9"))

    sampling.cancel(submitted.request_id)
    backend.let_go("sample")

    await sampling.drained()


async def test_too_many_samples_are_busy_until_some_are_done(backend: FakeBackend, futures: Futures) -> None:
    sampling = Sampling(backend, futures, Limits(samples=2))
    first = submit(sampling, 0)
    submit(sampling, 1)

    with pytest.raises(Busy, match="2 samples are queued"):
        submit(sampling, 2)
    assert submit(sampling, 0) == first  # a repeat asks for nothing new

    await sampling.drained()
    assert not (await result_of(futures, submit(sampling, 2))).is_failure


async def test_bodies_that_wait_count_against_the_servers_memory(backend: FakeBackend, futures: Futures) -> None:
    sampling = Sampling(backend, futures, Limits(queued_bytes=10))
    submit(sampling, 0, body=b"12345")

    with pytest.raises(Busy):
        submit(sampling, 1, body=b"123456")

    await sampling.drained()
    submit(sampling, 1, body=b"123456")
    await sampling.drained()


async def test_each_clone_learns_of_its_own_samples(sampling: Sampling) -> None:
    mine, other = submit(sampling, 5), submit(sampling, 3 * CLONE_SPAN + 5)
    elsewhere = submit(sampling, 5, source=BASE)
    await sampling.drained()

    assert await completed(sampling, 0) == [mine.request_id]
    assert await completed(sampling, 3) == [other.request_id]
    assert await completed(sampling, 1) == []
    assert await completed(sampling, 0, source=BASE) == [elsewhere.request_id]


async def test_a_completion_is_told_when_its_result_is_there(
    sampling: Sampling, futures: Futures, backend: FakeBackend
) -> None:
    backend.fail_next("sample", BadRequest("no"))
    failed = submit(sampling, 0)
    await sampling.drained()
    submitted = submit(sampling, 1)

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
    submit(sampling, 0)
    other = submit(sampling, 0, source=BASE)
    await sampling.drained()

    sampling.forget_feeds({"s:sample:0"})

    assert await completed(sampling) == []
    assert await completed(sampling, source=BASE) == [other.request_id]


async def test_everyone_who_waits_for_completions_can_be_answered(sampling: Sampling) -> None:
    waiting = [asyncio.create_task(sampling.feed("s:sample:0", clone).after(0, 60)) for clone in (0, 1)]
    await asyncio.sleep(0)

    sampling.wake_all()

    assert await asyncio.wait_for(asyncio.gather(*waiting), 10) == [([], 0), ([], 0)]


async def test_whoever_waits_for_samples_of_a_session_is_answered_when_it_is_finished(sampling: Sampling) -> None:
    waiting = asyncio.create_task(sampling.feed("s:sample:0", 0).after(0, 60))
    await settle_down()

    sampling.forget_feeds({"s:sample:0"})

    async with asyncio.timeout(5):
        assert await waiting == ([], 0)
