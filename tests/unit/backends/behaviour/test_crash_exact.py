"""The real worker, killed: what it does after it is brought back is bit for bit what it would have done."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from chockstone.backends.protocol import PassReply, RunSpec, SampleCall, SaveCall, StepReply, WorkerLost
from chockstone.backends.run_spec import OPTIMIZERS
from chockstone.backends.supervision.local import LocalBackend
from chockstone.backends.supervision.process import WorkerConfig
from chockstone.checkpoints import Archive, load_state
from support.backends.bodies import pass_body, sample_body
from support.backends.saving import make_directory

SPECS = [{"rank": rank, "seed": 5, "optimizer": optimizer} for rank, optimizer in itertools.product((4, 0), OPTIMIZERS)]
STEPS = 6
PARAMS: dict[str, dict[str, Any]] = {
    "adamw": {"learning_rate": 1e-2, "weight_decay": 0.01, "grad_clip_norm": 1.0},
    "sgd": {"type": "sgd", "learning_rate": 1e-2, "momentum": 0.9},
}


Operation = bytes | dict[str, Any]  # the body of a pass, or the parameters of a step


def operations(optimizer: str) -> list[Operation]:
    """Two passes, of several micro-batches each, and a step; again and again."""
    operations: list[Operation] = []
    for step in range(STEPS):
        operations.append(pass_body(9, 31, 17, 24, seed=2 * step))
        operations.append(pass_body(12, 5, seed=2 * step + 1))
        operations.append(PARAMS[optimizer])
    return operations


SAVED = 3 * (STEPS // 2) + 1  # operations before the recovery archive: half of a gradient is accumulated


@dataclass
class Record:
    """What a run answered, operation by operation, and its state at the end."""

    answers: list[object] = field(default_factory=list)
    state: dict[str, Any] = field(default_factory=dict)


@dataclass
class Story:
    undisturbed: dict[str, Record] = field(default_factory=dict)
    killed: dict[str, Record] = field(default_factory=dict)
    samples: list[bytes] = field(default_factory=list)  # of one request, alone, in two lives of the worker
    reasons: list[str] = field(default_factory=list)
    environments: list[dict[str, Any]] = field(default_factory=list)


class Teller:
    def __init__(self, home: Path) -> None:
        directory = make_directory(home / "base", "qwen3", tied=True)
        self.store = home / "store"
        self.story = Story()
        self.backend = LocalBackend(
            WorkerConfig(
                models={"tiny": str(directory)},
                store=str(self.store),
                device="cpu",
                threads=1,
                tokens_per_micro_batch=48,
            ),
            on_lost=self.story.reasons.append,
        )

    async def tell(self) -> Story:
        await self.backend.start()
        try:
            for spec in SPECS:
                self.story.undisturbed[str(spec)] = await self.leave_alone(spec)
            for spec in SPECS:
                self.story.killed[str(spec)] = await self.begin(spec)
            await self.backend.snapshot(str(SPECS[0]), "sampler")
            await self.sample()
            await self.sample_from(None, sample_body([9, 8, 7, 6], num_samples=5, max_tokens=9))
            await self.sample()
            self.story.environments.append(dict(self.backend.environment))
            await self.backend.written("sampler")  # else it dies with the worker
            await self.kill()
            for spec in SPECS:
                await self.go_on(spec)
            await self.sample()
            self.story.environments.append(dict(self.backend.environment))
        finally:
            await self.backend.stop()
        return self.story

    async def leave_alone(self, spec: dict[str, Any]) -> Record:
        record = Record()
        run_id = f"undisturbed {spec}"
        await self.open(run_id, spec)
        record.answers = [await self.do(run_id, operation) for operation in operations(spec["optimizer"])]
        record.state = await self.save(run_id, f"undisturbed-{SPECS.index(spec)}")
        return record

    async def begin(self, spec: dict[str, Any]) -> Record:
        """Up to the archive, and on; what is beyond it will be lost."""
        record = Record()
        run_id = str(spec)
        todo = operations(spec["optimizer"])
        await self.open(run_id, spec)
        record.answers = [await self.do(run_id, operation) for operation in todo[:SAVED]]
        await self.save(run_id, f"recovery-{SPECS.index(spec)}")
        for operation in todo[SAVED : SAVED + 4]:
            await self.do(run_id, operation)
        return record

    async def go_on(self, spec: dict[str, Any]) -> None:
        record = self.story.killed[str(spec)]
        run_id = str(spec)
        archive = f"recovery-{SPECS.index(spec)}"
        await self.open(run_id, spec)
        await self.backend.load(run_id, archive, with_optimizer=True)
        for operation in operations(spec["optimizer"])[SAVED:]:
            record.answers.append(await self.do(run_id, operation))
        record.state = await self.save(run_id, f"end-{SPECS.index(spec)}")

    async def open(self, run_id: str, spec: dict[str, Any]) -> None:
        await self.backend.open_run(run_id, owner="", base_model="tiny", spec=RunSpec(**spec))

    async def do(self, run_id: str, operation: Operation) -> object:
        reply: PassReply | StepReply
        if isinstance(operation, bytes):
            reply = await self.backend.forward_backward(run_id, operation)
        else:
            reply = await self.backend.optim_step(run_id, operation)
        assert reply.seconds > 0
        return replace(reply, seconds=0.0)

    async def save(self, run_id: str, archive: str) -> dict[str, Any]:
        reply = await self.backend.save(SaveCall(run_id=run_id, archive=archive, kind="recovery"))
        assert reply.seconds > 0
        with Archive.open(self.store / f"{archive}.tar") as opened:
            return load_state(opened)

    async def sample(self) -> None:
        body = sample_body([5, 3], num_samples=3, max_tokens=8)
        self.story.samples.append(await self.sample_from("sampler", body))

    async def sample_from(self, archive: str | None, body: bytes) -> bytes:
        call = SampleCall(key="k", base_model="tiny", archive=archive, seed=77, body=body)
        return (await self.backend.sample(call)).result

    async def kill(self) -> None:
        """While it works on something."""
        working = asyncio.create_task(self.backend.forward_backward(str(SPECS[0]), pass_body(*[60] * 50)))
        await asyncio.sleep(0)
        assert self.backend._handle is not None
        self.backend._handle.kill()
        with pytest.raises(WorkerLost):
            await working
        await self.backend.ready()


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    return asyncio.run(Teller(tmp_path_factory.mktemp("crash")).tell())


def differing(expected: object, actual: object, path: str = "") -> list[str]:
    """Where two states are not the same, bit for bit."""
    if isinstance(expected, torch.Tensor):
        assert isinstance(actual, torch.Tensor), path
        same = expected.dtype == actual.dtype and expected.shape == actual.shape
        same = same and expected.numpy().tobytes() == actual.numpy().tobytes()
        return [] if same else [path]
    if isinstance(expected, dict) and isinstance(actual, dict):
        names = [*expected, *(name for name in actual if name not in expected)]
        return [d for name in names for d in differing(expected.get(name), actual.get(name), f"{path}/{name}")]
    return [] if expected == actual else [path]


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: f"rank {spec['rank']}, {spec['optimizer']}")
def test_a_run_that_is_brought_back_goes_on_with_the_same_bits(story: Story, spec: dict[str, Any]) -> None:
    undisturbed, killed = story.undisturbed[str(spec)], story.killed[str(spec)]

    assert len(killed.answers) == len(operations(spec["optimizer"]))
    assert killed.answers == undisturbed.answers
    assert differing(undisturbed.state, killed.state) == []
    assert undisturbed.state["optimizer"]["steps"] == STEPS


def test_the_runs_of_the_story_are_worth_comparing(story: Story) -> None:
    """They learn, and a bit makes a difference."""
    first, second = (record.state for record in list(story.undisturbed.values())[:2])
    changed = {name: weight.clone() for name, weight in first["weights"].items()}
    some = next(iter(changed.values())).view(-1)
    some[0] = torch.nextafter(some[0], torch.tensor(9.0))

    assert len(differing(first["weights"], second["weights"])) == len(first["weights"])
    assert len(differing(first, {**first, "weights": changed})) == 1
    for record in story.undisturbed.values():
        assert len({answer.result for answer in record.answers if isinstance(answer, PassReply)}) == 2 * STEPS


def test_a_sample_alone_is_the_same_in_every_life_of_the_worker(story: Story) -> None:
    assert len(story.samples) == 3
    assert len(set(story.samples)) == 1


def test_the_worker_died_once_and_its_environment_is_the_same_after_it(story: Story) -> None:
    before, after = story.environments

    assert story.reasons == ["the worker process ended with signal 9 (SIGKILL, sent manually or by the OOM killer)"]
    assert before == after
    assert before["threads"] == 1 and before["tokens_per_micro_batch"] == 48
    machine = {"device", "dtype", "base_precision", "threads", "processes", "torch", "cpu", "instruction_sets"}
    assert before.keys() == machine | {"arithmetic", "decoding", "tokens_per_micro_batch", "models"}
