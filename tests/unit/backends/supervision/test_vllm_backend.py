from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any

import orjson
import pytest

from chockstone.backends.calls import (
    EmptyReply,
    ForgetCall,
    OptimStepCall,
    ReplyT,
    WorkerCall,
    WorkerCalls,
    WrittenCall,
    name_of,
)
from chockstone.backends.protocol import SampleCall, SampleReply, StepReply
from chockstone.backends.supervision.vllm_backend import CannotSample, VllmBackend, VllmPlan
from chockstone.checkpoints import open_store
from chockstone.wire.failures import BadRequest, RequestError, ServerFailure
from support.backends.saving import full_run, make_base, open_desk
from support.tiny_models import lora_run, tiny_base
from support.vllm.stub import EOS, MODEL, VOCABULARY, Stub, running


class Worker(WorkerCalls):
    """Writes down what it is asked; ``unwritten`` are archives that it writes when told so."""

    def __init__(self) -> None:
        self.calls: list[WorkerCall] = []
        self.is_ready, self.generation, self.environment = True, 1, {"dtype": "float32"}
        self.failure: RequestError | None = None
        self.writing = asyncio.Event()
        self.writing.set()

    @property
    def words(self) -> list[str]:
        return [name_of(call) for call in self.calls]

    async def ready(self) -> None: ...
    async def start(self) -> None: ...
    async def stop(self) -> None: ...

    async def send(self, call: WorkerCall, reply: type[ReplyT], **_: Any) -> ReplyT:
        self.calls.append(call)
        if isinstance(call, WrittenCall):
            await self.writing.wait()
        if isinstance(call, SampleCall | ForgetCall) and self.failure is not None:
            raise self.failure
        replies = [EmptyReply(), StepReply(metrics={}), SampleReply(content=b"the worker's", tokens=0, prompt_tokens=0)]
        return next(each for each in replies if isinstance(each, reply))


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("home")
    (home / "model").mkdir()
    config = {"vocab_size": VOCABULARY, "hidden_size": 8, "eos_token_id": EOS, "max_position_embeddings": 64}
    (home / "model" / "config.json").write_text(json.dumps(config))
    with open_desk(home / "store") as desk:
        desk.save(lora_run(tiny_base()), "lora", kind="sampler_weights")
        desk.save(lora_run(tiny_base(), train_unembed=False), "headless", kind="sampler_weights")
        desk.save(full_run(make_base(home / "base")), "full", kind="sampler_weights")
    return home


@asynccontextmanager
async def backend_of(home: Path, adapters: Path, worker: Worker, *stubs: Stub) -> AsyncIterator[VllmBackend]:
    plan = VllmPlan([stub.url for stub in stubs], {MODEL: home / "model"}, adapters, 2)
    backend = await VllmBackend.open(worker, plan, open_store(home / "store"))  # type: ignore[arg-type]
    try:
        yield backend
    finally:
        await backend.stop()


@pytest.fixture
async def stub() -> AsyncIterator[Stub]:
    made = Stub(has_head=True)
    async with running(made):
        yield made


@pytest.fixture
def worker() -> Worker:
    return Worker()


@pytest.fixture
async def backend(home: Path, tmp_path: Path, worker: Worker, stub: Stub) -> AsyncIterator[VllmBackend]:
    async with backend_of(home, tmp_path / "adapters", worker, stub) as made:
        yield made


def asked(archive: str | None = None, *, key: str = "a", prompt_logprobs: bool = False, **params: Any) -> SampleCall:
    body = {
        "prompt": {"chunks": [{"type": "encoded_text", "tokens": [5, 6, 7]}]},
        "sampling_params": {"max_tokens": 4, **params},
        "prompt_logprobs": prompt_logprobs,
    }
    return SampleCall(key=key, base_model=MODEL, archive=archive, seed=5, body=orjson.dumps(body))


async def test_samples_are_vllms_and_counted(backend: VllmBackend, worker: Worker, stub: Stub) -> None:
    of_base = await backend.sample(asked())
    of_adapter = await backend.sample(asked("lora"))

    assert of_base.prompt_tokens == of_adapter.prompt_tokens == 3
    assert 1 <= of_base.tokens <= 4
    assert [body["model"] for body in stub.requests] == [MODEL, next(iter(stub.adapters))]
    assert worker.words == ["written"]


async def test_what_vllm_does_not_give_exactly_is_the_workers(backend: VllmBackend, worker: Worker, stub: Stub) -> None:
    replies = [await backend.sample(asked(temperature=0.5)), await backend.sample(asked("lora", max_tokens=62))]

    assert [reply.result for reply in replies] == [b"the worker's"] * 2
    assert stub.requests == []


@pytest.mark.parametrize(
    ("has_head", "archive", "prompt_logprobs", "is_vllms"),
    [
        (False, None, True, True),
        (False, "headless", True, True),
        (False, "lora", False, False),
        (True, "lora", False, True),
        (True, "lora", True, False),
        (True, None, True, False),
    ],
)
async def test_a_server_is_asked_for_adapters_of_the_output_layer_or_to_score_prompts(
    home: Path,
    tmp_path: Path,
    worker: Worker,
    has_head: bool,
    archive: str | None,
    prompt_logprobs: bool,
    is_vllms: bool,
) -> None:
    stub = Stub(has_head=has_head)
    async with running(stub), backend_of(home, tmp_path / "adapters", worker, stub) as backend:
        await backend.sample(asked(archive, prompt_logprobs=prompt_logprobs))

    assert len(stub.requests) == is_vllms
    assert ("sample" in worker.words) != is_vllms


async def test_all_else_is_the_workers(backend: VllmBackend, worker: Worker) -> None:
    await backend.optim_step("r", {})

    assert worker.calls == [OptimStepCall(run_id="r", params={})]
    assert (backend.is_ready, backend.generation, backend.environment) == (True, 1, {"dtype": "float32"})


async def test_weights_that_are_being_written_are_waited_for(backend: VllmBackend, worker: Worker, home: Path) -> None:
    worker.writing.clear()
    sampling = asyncio.create_task(backend.sample(asked("soon")))
    await asyncio.sleep(0.02)
    assert not sampling.done()
    (home / "store" / "soon.tar").write_bytes((home / "store" / "lora.tar").read_bytes())
    worker.writing.set()

    assert (await sampling).prompt_tokens == 3


async def test_weights_that_fit_no_disk_are_sampled_where_they_are(backend: VllmBackend, worker: Worker) -> None:
    assert (await backend.sample(asked("gone"))).result == b"the worker's"

    worker.failure = BadRequest("not here either", code="missing")
    with pytest.raises(BadRequest, match="not here either"):
        await backend.sample(asked("gone"))


async def test_whole_models_are_refused(backend: VllmBackend) -> None:
    with pytest.raises(BadRequest, match="LoRA adapters only"):
        await backend.sample(asked("full"))


async def test_a_bad_request_is_refused(backend: VllmBackend) -> None:
    with pytest.raises(BadRequest, match="temperature"):
        await backend.sample(asked(temperature=-1))


async def test_a_cancelled_sample_ends_at_once_and_everywhere(backend: VllmBackend, worker: Worker, stub: Stub) -> None:
    stub.gate.clear()
    sampling = asyncio.create_task(backend.sample(asked(key="b")))
    while not stub.requests:
        await asyncio.sleep(0.005)

    await backend.cancel("b")

    with pytest.raises(BadRequest, match="was cancelled"):
        await sampling
    assert worker.words == ["cancel"]


@pytest.mark.parametrize("failure", [None, ServerFailure("the worker died")])
async def test_forgotten_weights_leave_disk_and_servers(
    backend: VllmBackend, worker: Worker, stub: Stub, tmp_path: Path, failure: ServerFailure | None
) -> None:
    await backend.sample(asked("lora"))
    assert len(stub.adapters) == 1
    worker.failure = failure

    with nullcontext() if failure is None else pytest.raises(ServerFailure):
        await backend.forget("lora")

    assert stub.adapters == {}
    assert [path.name for path in (tmp_path / "adapters").iterdir()] == [".lock"]
    assert worker.words == ["written", "forget"]


async def test_a_server_that_stops_leaves_nothing_behind(
    home: Path, tmp_path: Path, worker: Worker, stub: Stub
) -> None:
    async with backend_of(home, tmp_path / "adapters", worker, stub) as backend:
        await backend.sample(asked("lora"))

    assert stub.adapters == {}
    assert [path.name for path in (tmp_path / "adapters").iterdir()] == [".lock"]


async def test_only_what_an_earlier_server_published_is_removed(
    home: Path, tmp_path: Path, worker: Worker, stub: Stub
) -> None:
    theirs = [tmp_path / "a" / name for name in ("0" * 64, "chockstone-mine", "probe-" + "0" * 16)]
    ours = [tmp_path / "a" / f"chockstone-{name}" for name in ("0" * 64, "probe-" + "0" * 16)]
    for directory in (*theirs, *ours):
        directory.mkdir(parents=True)

    async with backend_of(home, tmp_path / "a", worker, stub):
        assert [directory.exists() for directory in (*theirs, *ours)] == [True] * 3 + [False] * 2


async def test_settings_that_cannot_work_are_refused(home: Path, tmp_path: Path, worker: Worker) -> None:
    other = Stub(models=("other",))
    async with running(other):
        with pytest.raises(CannotSample, match="serves 'other'"):
            async with backend_of(home, tmp_path / "adapters", worker, other):
                pass
    (tmp_path / "file").touch()
    with pytest.raises(CannotSample, match="--vllm-adapters"):
        async with backend_of(home, tmp_path / "file", worker, other):
            pass
