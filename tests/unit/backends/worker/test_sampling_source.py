from __future__ import annotations

from typing import Any

import orjson
import pytest

from chockstone.backends.worker import sampling_source
from chockstone.backends.worker.sampler_weights import Weights
from chockstone.backends.worker.sampling_source import SamplingSource
from chockstone.sampling.model import SampledModel
from chockstone.sampling.sampler import Sampler
from chockstone.wire.codecs.sample_request import decode_sample
from chockstone.wire.codecs.samples import SampleRequest, SampleResult
from chockstone.wire.failures import BadRequest, Failure
from support.backends.bodies import sample_body
from support.tiny_models import tiny_base


@pytest.fixture(scope="module")
def weights() -> Weights:
    base = tiny_base()
    return Weights(SampledModel(base.model, base.tokenizer, max_context=base.max_context), None, 0)


def request(**params: Any) -> SampleRequest:
    return decode_sample(orjson.loads(sample_body([3, 4], **params)))


def run(source: SamplingSource) -> None:
    while source.has_work():
        source.step()


def test_a_finished_sample_completes_its_future(weights: Weights) -> None:
    source = SamplingSource(8)

    done = source.add("a", weights, request(num_samples=2, max_tokens=3), seed=1)
    assert not done.done()
    run(source)

    outcome = done.result()
    assert isinstance(outcome, SampleResult) and len(outcome.sequences) == 2


def test_a_cancelled_sample_is_a_failure_of_the_user(weights: Weights) -> None:
    source = SamplingSource(8)
    done = source.add("a", weights, request(max_tokens=30), seed=1)

    source.cancel("a")
    source.cancel("unknown")

    assert done.result() == Failure("the sample was cancelled", "user")
    assert not source.has_work()


def test_a_sampler_that_fails_fails_its_samples_and_is_replaced(
    weights: Weights, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = SamplingSource(8)
    broken = source.add("a", weights, request(max_tokens=3), seed=1)

    def fail(_: Sampler) -> None:
        raise RuntimeError("no memory")

    with monkeypatch.context() as patched:
        patched.setattr(Sampler, "step", fail)
        source.step()
    sound = source.add("b", weights, request(max_tokens=3), seed=1)
    run(source)

    assert broken.result() == Failure("the sampler failed: RuntimeError: no memory", "server")
    assert isinstance(sound.result(), SampleResult)


def test_more_alternatives_than_a_result_can_hold_are_refused(
    weights: Weights, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampling_source, "_ALTERNATIVE_CELLS", 4 * 2 * 3 - 1)
    body = orjson.loads(sample_body([3, 4], num_samples=2, max_tokens=3)) | {"topk_sample_logprobs": 4}

    with pytest.raises(BadRequest, match="is 24 alternatives, more than 23; ask for fewer of one of them"):
        SamplingSource(8).add("a", weights, decode_sample(body), seed=1)


@pytest.mark.parametrize(("step_seconds", "share"), [(0.001, 0.25), (0.01, 1)])
def test_64_streams_are_one_message_per_step_or_per_5_milliseconds(
    weights: Weights, step_seconds: float, share: float
) -> None:
    sent: list[int] = []
    clock = [0.0]
    source = SamplingSource(64, on_pieces=lambda event: sent.append(len(event.pieces)), now=lambda: clock[0])
    for number in range(64):
        source.add(str(number), weights, request(num_samples=1, max_tokens=20), seed=number, stream=number)

    steps = 0
    while source.has_work():
        source.step()
        clock[0] += step_seconds
        steps += 1

    assert 0 < len(sent) <= steps * share
    assert max(sent) > 32  # many streams in one message


def test_samples_that_are_not_streamed_send_nothing(weights: Weights) -> None:
    sent: list[object] = []
    clock = iter(range(10**6))
    source = SamplingSource(8, on_pieces=sent.append, now=lambda: next(clock))
    source.add("a", weights, request(num_samples=1, max_tokens=5), seed=1)

    run(source)

    assert (sent, next(clock)) == ([], 1)  # nobody asked for the time, but once when the source was made
