"""A Tinker server in memory that a trainer can be driven with, and what surrounds a trainer.

Weights are a digest of all that was ever trained, and a sampler's tokens follow from weights, prompt and seed: two
runs that differ in one bit of what they trained on soon differ in every sample. Whatever a coroutine waits for passes
``reach`` with the name of the operation, where a test can hold it, fail it, or look on.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import tinker

from chockstone.trainers import Completion, Problem, ProblemDraw, StepRecord, Trainer, TrainerConfig
from chockstone.trainers.reports.reports import Level
from chockstone.trainers.rollouts.loader import ShuffledLoader


class FakeServer:
    """What outlives a trainer. ``saved``: path → weights."""

    def __init__(self) -> None:
        self.saved: dict[str, str] = {}
        self.calls: list[str] = []  # all operations in the order in which they were asked for
        self.reached: Counter[str] = Counter()
        self.answered: Counter[str] = Counter()
        self.pace: Callable[[str], Awaitable[object]] = lambda what: asyncio.sleep(0)
        self.in_thread: dict[str, Callable[[], object]] = {}  # for calls that block: by name
        self.runs = 0
        self._held: dict[str, asyncio.Event] = {}
        self._failures: dict[str, list[BaseException]] = {}

    def hold(self, what: str) -> asyncio.Event:
        """Whoever asks for it waits until this is set."""
        return self._held.setdefault(what, asyncio.Event())

    def fail(self, what: str, *errors: BaseException) -> None:
        """The next time it is asked for, and the times after that."""
        self._failures.setdefault(what, []).extend(errors)

    async def reach(self, what: str) -> None:
        self.reached[what] += 1
        error = self._next_failure(what)
        await self.pace(what)
        if what in self._held:
            await self._held[what].wait()
        if error is not None:
            raise error
        self.answered[what] += 1

    def block(self, what: str) -> None:
        """As ``reach``, for calls in threads."""
        self.calls.append(what)
        self.in_thread.get(what, lambda: None)()
        error = self._next_failure(what)
        if error is not None:
            raise error

    async def until(self, what: str, count: int = 1) -> None:
        """Until it was asked for so often."""
        while self.reached[what] < count:
            await asyncio.sleep(0.001)

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(tinker, "ServiceClient", lambda **_: FakeService(self))
        monkeypatch.setattr(tinker, "RestClient", lambda **_: FakeRest(self))

    def _next_failure(self, what: str) -> BaseException | None:
        waiting = self._failures.get(what)
        return waiting.pop(0) if waiting else None


class Answer:
    """Awaited in the loop, as the SDK's futures are; ``result`` is for threads."""

    def __init__(self, server: FakeServer, what: str, value: Any) -> None:
        self._server = server
        self._what = what
        self._value = value

    def __await__(self) -> Generator[Any, None, Any]:
        yield from self._server.reach(self._what).__await__()
        return self._value() if callable(self._value) else self._value

    def result(self) -> Any:
        return self._value


class FakeRun:
    def __init__(self, server: FakeServer, weights: str) -> None:
        server.runs += 1
        self.model_id = f"run-{server.runs}"
        self.weights = weights
        self._passed = ""
        self._server = server

    def forward_backward(self, data: Sequence[tinker.Datum], loss: str, config: object) -> Answer:
        self._server.block("submit")
        told = repr([[each.model_input.to_ints(), *map(_values, each.loss_fn_inputs.values())] for each in data])
        self._passed = hashlib.sha256((loss + told).encode()).hexdigest()
        return self._answer("forward_backward", SimpleNamespace(metrics={"loss:sum": 1.0}))

    def optim_step(self, adam: object) -> Answer:
        self._server.block("step")
        self.weights = hashlib.sha256((self.weights + self._passed).encode()).hexdigest()
        return self._answer("optim_step", SimpleNamespace(metrics=None))

    def save_state(self, name: str) -> Answer:
        return self._save("save_state", "weights", name)

    def save_weights_for_sampler(self, name: str) -> Answer:
        return self._save("save_sampler", "sampler_weights", name)

    def save_weights_external(self, name: str) -> Answer:
        return self._save("save_hf", "external", name)

    def save_weights_and_get_sampling_client(self) -> FakeSampler:
        self._server.block("sync")
        return FakeSampler(self._server, self.weights)

    def get_tokenizer(self) -> Tokenizer:
        self._server.block("tokenizer")
        return Tokenizer()

    def _save(self, what: str, kind: str, name: str) -> Answer:
        path, weights = f"tinker://{self.model_id}/{kind}/{name}", self.weights
        self._server.calls.append(what)

        def keep() -> SimpleNamespace:
            assert path not in self._server.saved, f"{path} exists"
            self._server.saved[path] = weights
            return SimpleNamespace(path=path)

        return Answer(self._server, what, keep)

    def _answer(self, what: str, value: object) -> Answer:
        return Answer(self._server, what, value)


class FakeSampler:
    def __init__(self, server: FakeServer, weights: str) -> None:
        self._server = server
        self._weights = weights

    async def sample_async(
        self, prompt: tinker.ModelInput, num_samples: int, sampling_params: tinker.SamplingParams
    ) -> SimpleNamespace:
        await self._server.reach("sample")
        chance = random.Random(f"{self._weights}/{sampling_params.seed}/{prompt.to_ints()}")
        return SimpleNamespace(sequences=[_sequence(chance) for _ in range(num_samples)])

    async def compute_logprobs_async(self, prompt: tinker.ModelInput) -> list[float | None]:
        await self._server.reach("compute_logprobs")
        return [None, *(-token / 100 for token in prompt.to_ints()[1:])]


class FakeService:
    def __init__(self, server: FakeServer) -> None:
        server.block("connect")
        self._server = server

    def create_lora_training_client(self, *, base_model: str, rank: int, seed: int) -> FakeRun:
        self._server.block("create")
        return FakeRun(self._server, f"{base_model}/{rank}/{seed}")

    def create_training_client_from_state_with_optimizer(self, path: str) -> FakeRun:
        self._server.block("load")
        if path not in self._server.saved:
            raise missing(path)
        return FakeRun(self._server, self._server.saved[path])

    def create_sampling_client(self, *, base_model: str) -> FakeSampler:
        return FakeSampler(self._server, base_model)

    def close(self, reason: str) -> Answer:
        self._server.block("close")
        return Answer(self._server, "close", None)


class FakeRest:
    def __init__(self, server: FakeServer) -> None:
        self._server = server

    def delete_checkpoint_from_tinker_path(self, path: str) -> Answer:
        self._server.block("delete")
        if self._server.saved.pop(path, None) is None:
            raise missing(path)
        return Answer(self._server, "delete", None)


class Tokenizer:
    """Not thread-safe, and says so."""

    def __init__(self) -> None:
        self._busy = threading.Lock()
        self.before: Callable[[], object] = lambda: None

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return self._alone(lambda: list(text.encode()))

    def apply_chat_template(self, messages: Sequence[Mapping[str, str]], **options: bool) -> list[int]:
        return self._alone(lambda: [1, *"".join(each["content"] for each in messages).encode(), 2])

    def decode(self, tokens: Sequence[int], *, skip_special_tokens: bool) -> str:
        return self._alone(lambda: " ".join(map(str, tokens)))

    def _alone(self, work: Callable[[], Any]) -> Any:
        assert self._busy.acquire(blocking=False), "the tokenizer is used by two threads at once"
        try:
            self.before()
            return work()
        finally:
            self._busy.release()


class Digits:
    """Problems whose reward is the mean of the completion's tokens."""

    name = "digits"
    stop: tuple[str, ...] = ()

    def __init__(self, count: int = 7) -> None:
        self.count = count
        self.judge: Callable[[Problem, Completion], float] = mean

    def __len__(self) -> int:
        return self.count

    def problem(self, index: int) -> Problem:
        return Problem(f"p{index}", f"{index}?")

    def reward(self, problem: Problem, completion: Completion) -> float:
        return self.judge(problem, completion)

    def evaluation(self) -> Sequence[Problem]:
        return [self.problem(0), self.problem(1)]


class Ledger:
    """A report that keeps what it is told, as the files do: a lost life's rows go."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.events: list[str] = []
        self.steps: list[int] = []
        self.metrics: dict[int, Mapping[str, float]] = {}
        self.evaluations: list[tuple[int, Mapping[str, float]]] = []
        self.before_record: Callable[[StepRecord], object] = lambda record: None
        self.is_closed = False

    def resume(self, step: int) -> None:
        self.rows = [row for row in self.rows if row["step"] <= step]
        self.steps = [each for each in self.steps if each <= step]

    def record(self, record: StepRecord) -> None:
        self.before_record(record)
        self.rows += [{"step": record.step, **row} for row in record.samples]
        self.steps.append(record.step)
        self.metrics[record.step] = record.metrics

    def evaluated(self, step: int, metrics: Mapping[str, float]) -> None:
        self.evaluations.append((step, metrics))

    def event(self, text: str, *, level: Level = "info") -> None:
        self.events.append(f"{level}: {text}")

    def close(self) -> None:
        self.is_closed = True

    @property
    def order(self) -> list[tuple[int, str]]:
        return [(row["step"], row["sample_id"]) for row in self.rows]


class StrictLoader(ShuffledLoader):
    """Used in the thread that made it only, never by two at once; its state is the one it goes on changing."""

    def __init__(self, count: int, *, seed: int) -> None:
        super().__init__(count, seed=seed)
        self._thread = threading.get_ident()
        self._is_busy = False
        self._live: dict[str, Any] = super().state_dict()

    def draw(self) -> ProblemDraw:
        return self._alone(super().draw)

    def state_dict(self) -> dict[str, Any]:
        return self._alone(lambda: {"live": self._live})

    def load_state_dict(self, state: Mapping[str, Any], /) -> None:
        self._alone(lambda: super(StrictLoader, self).load_state_dict(state["live"]))

    def _alone(self, work: Callable[[], Any]) -> Any:
        assert threading.get_ident() == self._thread, "the loader is used in another thread"
        assert not self._is_busy, "the loader is used by two at once"
        self._is_busy = True
        try:
            return work()
        finally:
            self._is_busy = False
            self._live.update(super().state_dict())


def mean(problem: Problem, completion: Completion) -> float:
    return sum(completion.tokens) / len(completion.tokens) / 10


def config(**changes: Any) -> TrainerConfig:
    """Small: six steps of two groups of two."""
    settings: dict[str, Any] = {"steps": 6, "batch_size": 2, "group_size": 2, "save_every": 2, "exports": ()}
    return TrainerConfig("tiny", **settings | changes)


def trainer(home: Path, ledger: Ledger, *, environment: Any = None, loader: Any = None, **changes: Any) -> Trainer:
    """With a loader that is not thread-safe. Call it in the thread of the loop."""
    settings, environment = config(**changes), environment or Digits()
    loader = loader or StrictLoader(len(environment), seed=settings.seed)
    return Trainer(settings, environment, store=home, reports=[ledger], loader=loader)


class TurningLoop(asyncio.SelectorEventLoop):
    """Counts its turns and does something after one of them."""

    def __init__(self) -> None:
        super().__init__()
        self.turns = 0
        self.after: Callable[[int], None] = lambda turn: None

    def _run_once(self) -> None:
        super()._run_once()  # type: ignore[misc]  # every loop of asyncio's has it
        self.turns += 1
        self.after(self.turns)


def run_on_turning_loop(main: Coroutine[Any, Any, Any], cancel_after: Sequence[int] = ()) -> tuple[Any, int]:
    """The result, or None if it was cancelled, and how many turns it took. Leaves no task."""

    async def watched() -> Any:
        task = asyncio.create_task(main)
        start = loop.turns
        loop.after = lambda turn: task.cancel() if turn - start in cancel_after else None
        await asyncio.wait([task])
        loop.after = lambda turn: None
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return (None if task.cancelled() else task.result()), loop.turns - start

    with asyncio.Runner(loop_factory=TurningLoop) as runner:
        loop: Any = runner.get_loop()
        return runner.run(watched())


def missing(path: str) -> tinker.NotFoundError:
    response = httpx.Response(404, request=httpx.Request("GET", "http://server/"))
    return tinker.NotFoundError(f"{path} is not here", response=response, body=None)


def _sequence(chance: random.Random) -> SimpleNamespace:
    tokens = [chance.randrange(10) for _ in range(chance.randint(1, 4))]
    return SimpleNamespace(
        tokens=tokens, logprobs=[-chance.random() for _ in tokens], stop_reason=chance.choice(["stop", "length"])
    )


def _values(tensor: tinker.TensorData) -> list[Any]:
    return tensor.to_numpy().tolist()
