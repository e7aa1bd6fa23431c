"""Gaps between vLLM and the worker: who serves, and what is reported."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from chockstone.backends.calls import ReplyT, WorkerCall, WorkerCalls
from chockstone.backends.protocol import SampleCall, SampledWeights, SampleReply, SamplerGap, WorkerLost
from chockstone.backends.supervision.vllm_backend import VllmBackend, VllmPlan
from chockstone.checkpoints import open_store
from chockstone.wire.codecs.sample_request import decode_sample
from chockstone.wire.codecs.sample_result import encode_sample_result
from chockstone.wire.codecs.samples import SampleResult
from chockstone.wire.failures import BadRequest, RequestError, ServerFailure
from support.backends.saving import full_run, make_base, open_desk
from support.tiny_models import lora_run, tiny_base
from support.vllm.making import score_text
from support.vllm.stub import EOS, MODEL, VOCABULARY, Stub, running

LIMIT = 0.1


class ExactWorker(WorkerCalls):
    """Scores prompts with the numbers of the stub's model, and answers other samples with its name."""

    def __init__(self, stub: Stub) -> None:
        self._stub = stub
        self.is_ready, self.generation, self.environment = True, 1, {"dtype": "float32"}
        self.scored: list[SampleCall] = []
        self.failure: RequestError | None = None
        self.scores: Any = None  # instead of the exact ones

    async def ready(self) -> None: ...
    async def start(self) -> None: ...
    async def stop(self) -> None: ...

    async def send(self, call: WorkerCall, reply: type[ReplyT], **_: Any) -> ReplyT:
        answer = self._sample(call) if isinstance(call, SampleCall) else reply()
        assert isinstance(answer, reply)
        return answer

    def _sample(self, call: SampleCall) -> SampleReply:
        request = decode_sample(orjson.loads(call.body))
        if not request.prompt_logprobs:
            return SampleReply(content=b"the worker's", tokens=0, prompt_tokens=0)
        self.scored.append(call)
        if self.failure is not None:
            raise self.failure
        adapter = "" if call.archive is None else next(iter(self._stub.adapters))
        scores = np.concatenate([[np.nan], score_text(request.prompt.tolist(), adapter)]).astype(np.float32)
        result = SampleResult((), scores if self.scores is None else self.scores)
        return SampleReply(content=encode_sample_result(result, request), tokens=1, prompt_tokens=len(scores))


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("home")
    (home / "model").mkdir()
    config = {"vocab_size": VOCABULARY, "hidden_size": 8, "eos_token_id": EOS, "max_position_embeddings": 64}
    (home / "model" / "config.json").write_text(json.dumps(config))
    with open_desk(home / "store") as desk:
        desk.save(lora_run(tiny_base()), "lora", kind="sampler_weights")
        desk.save(full_run(make_base(home / "base")), "full", kind="sampler_weights")
    return home


@pytest.fixture
async def stub() -> AsyncIterator[Stub]:
    made = Stub(has_head=True)
    async with running(made):
        yield made


@pytest.fixture
def worker(stub: Stub) -> ExactWorker:
    return ExactWorker(stub)


@pytest.fixture
def reported() -> list[SamplerGap]:
    return []


@asynccontextmanager
async def backend_of(
    home: Path, adapters: Path, worker: ExactWorker, stub: Stub, reported: list[SamplerGap], *, limit: float | None
) -> AsyncIterator[VllmBackend]:
    async def report(gap: SamplerGap) -> None:
        reported.append(gap)

    plan = VllmPlan([stub.url], {MODEL: home / "model"}, adapters, 2, gap_limit=limit)
    store = open_store(home / "store")
    backend = await VllmBackend.open(worker, plan, store, on_gap=report)  # type: ignore[arg-type]
    try:
        yield backend
    finally:
        await backend.stop()


@pytest.fixture
async def backend(
    home: Path, tmp_path: Path, worker: ExactWorker, stub: Stub, reported: list[SamplerGap]
) -> AsyncIterator[VllmBackend]:
    async with backend_of(home, tmp_path / "adapters", worker, stub, reported, limit=LIMIT) as made:
        yield made


def asked(archive: str | None = None) -> SampleCall:
    prompt = {"chunks": [{"type": "encoded_text", "tokens": [5, 6, 7]}]}
    body = orjson.dumps({"prompt": prompt, "sampling_params": {"max_tokens": 4}})
    return SampleCall(key="a", base_model=f"{MODEL}:peft:60", owner="ann", archive=archive, seed=5, body=body)


async def test_weights_within_the_limit_are_vllms_after_one_probe(
    backend: VllmBackend, worker: ExactWorker, stub: Stub, reported: list[SamplerGap]
) -> None:
    replies = [await backend.sample(asked(archive)) for archive in ("lora", "lora", None)]

    assert all(reply.tokens for reply in replies)
    assert [(call.archive, call.owner, call.base_model) for call in worker.scored] == (
        [("lora", "ann", MODEL)] * 4 + [(None, "ann", MODEL)] * 4
    )
    assert len({call.key for call in worker.scored}) == 8
    assert [(gap.archive, gap.base_model, gap.server, gap.tokens) for gap in reported] == [
        ("lora", MODEL, stub.url, 128),
        (None, MODEL, stub.url, 128),
    ]
    assert all(gap.is_within(1e-6) for gap in reported)


async def test_weights_above_the_limit_are_the_workers(
    backend: VllmBackend, stub: Stub, reported: list[SamplerGap]
) -> None:
    stub.gap = 0.3

    replies = [await backend.sample(asked("lora")) for _ in range(3)]

    assert [reply.result for reply in replies] == [b"the worker's"] * 3
    assert backend.exceeding_gaps() == reported and len(reported) == 1
    assert reported[0].mean == pytest.approx(0.3, abs=1e-6)
    await backend.forget("lora")
    assert backend.exceeding_gaps() == []


@pytest.mark.parametrize("scores", [np.full(48, np.nan, np.float32), np.zeros(3, np.float32)])
async def test_scores_that_are_no_scores_leave_the_sample_to_the_worker(
    backend: VllmBackend, worker: ExactWorker, reported: list[SamplerGap], scores: Any
) -> None:
    worker.scores = scores

    assert (await backend.sample(asked("lora"))).result == b"the worker's"

    assert "the worker did not" in str(reported[0].trouble)


async def test_weights_that_the_worker_cannot_score_are_its_to_sample_from(
    backend: VllmBackend, worker: ExactWorker, reported: list[SamplerGap]
) -> None:
    worker.failure = ServerFailure("out of memory")

    assert (await backend.sample(asked("lora"))).result == b"the worker's"

    assert reported[0].trouble == "the worker cannot score the probe: out of memory"


async def test_a_worker_that_dies_of_the_probe_is_reported_as_lost(backend: VllmBackend, worker: ExactWorker) -> None:
    worker.failure = WorkerLost("signal 9")
    with pytest.raises(WorkerLost, match="signal 9"):
        await backend.sample(asked("lora"))
    worker.failure = None

    assert (await backend.sample(asked("lora"))).tokens


async def test_without_a_limit_gaps_are_measured_on_demand_only(
    home: Path, tmp_path: Path, worker: ExactWorker, stub: Stub, reported: list[SamplerGap]
) -> None:
    stub.gap = 0.3
    async with backend_of(home, tmp_path / "adapters", worker, stub, reported, limit=None) as backend:
        assert (await backend.sample(asked("lora"))).tokens
        assert reported == []

        of_lora = await backend.measure_gaps(SampledWeights(base_model=MODEL, owner="ann", archive="lora"))
        of_base = await backend.measure_gaps(SampledWeights(base_model=f"{MODEL}:peft:9", owner="ann"))

        assert (await backend.sample(asked("lora"))).tokens
        assert [gap.mean for gap in (*of_lora, *of_base)] == [pytest.approx(0.3, abs=1e-6)] * 2
        assert reported == [*of_lora, *of_base] and backend.exceeding_gaps() == []


async def test_weights_without_an_adapter_cannot_be_measured(backend: VllmBackend) -> None:
    with pytest.raises(BadRequest, match="LoRA adapters only"):
        await backend.measure_gaps(SampledWeights(base_model=MODEL, owner="ann", archive="full"))
    with pytest.raises(BadRequest) as missing:
        await backend.measure_gaps(SampledWeights(base_model=MODEL, owner="ann", archive="gone"))
    assert missing.value.code == "missing"
