"""A server with something to show: users, runs trained through the SDK, checkpoints, a crash, samplers and findings.

Everything is real: the numbers come from training a small model on this machine, the recoveries from ``kill -9``. The
functions that call the SDK run in threads of their own, because Playwright keeps an event loop in the main thread and
the SDK refuses to be called beside one.
"""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

import tinker
from tinker import types

from support.live import LiveServer

T = TypeVar("T")

ANN, BEN = "tml-ann-key", "tml-ben-key"
FLAGS: Final = (
    *("--key", f"ann={ANN}", "--key", f"ben={BEN}", "--admin", "ann"),
    *("--trash", "7d", "--user-quota", "200MB", "--recovery-steps", "20"),
)
MODEL: Final = "tiny-qwen3"

CLIMBS: Final = {  # question → answer
    "What is a chockstone?": "A rock wedged in a crack that holds a climber's fall.",
    "What does a checkpoint promise?": "Once it was returned, it always loads.",
    "What is a lane?": "The order in which one run's operations happen.",
    "Who holds the rope?": "The belayer holds the rope and never looks away.",
    "When do we turn back?": "When the clouds reach the ridge, whatever the hour.",
    "What is a belay?": "An anchor, a rope and a friend who pays attention.",
    "How long is the route?": "Nine pitches, and the last one is the hardest.",
    "What do we carry?": "Two ropes, a rack of nuts, water, and a small stove.",
}


def apart(work: Callable[[], T]) -> Future[T]:
    """Run in a thread of its own; ``result()`` of what is returned waits for it."""
    done: Future[T] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return done


@dataclass
class Trained:
    """A run of a script. ``saved`` has the path of each checkpoint by its name."""

    run_id: str
    client: Any  # the SDK's TrainingClient
    losses: list[float] = field(default_factory=list)
    saved: dict[str, str] = field(default_factory=dict)


@contextmanager
def service(server: LiveServer, key: str, **options: Any) -> Iterator[Any]:
    client = tinker.ServiceClient(base_url=server.url, api_key=key, **options)
    try:
        yield client
    finally:
        with suppress(TimeoutError):  # SDK 0.36 may lose the cancellation of its own heartbeat, and waits for it
            client.close("success").result(timeout=15)


def conversation(tokenizer: Any, question: str, answer: str) -> types.Datum:
    user = [{"role": "user", "content": question}]
    prompt = tokenizer.apply_chat_template(user, add_generation_prompt=True, return_dict=False)
    text = tokenizer.apply_chat_template([*user, {"role": "assistant", "content": answer}], return_dict=False)
    weights = [0.0] * (len(prompt) - 1) + [1.0] * (len(text) - len(prompt))
    return types.Datum(
        model_input=types.ModelInput.from_ints(text[:-1]),
        loss_fn_inputs={"target_tokens": text[1:], "weights": weights},
    )


def finetune(
    trained: Trained,
    steps: int,
    *,
    learning_rate: float = 4e-3,
    save_every: int = 0,
    seed: int = 0,
    start: int = 0,
    answers: Mapping[str, str] = CLIMBS,
    on_step: Callable[[int], None] = lambda step: None,
) -> Trained:
    """Teach answers, four conversations a step, with a warm-up and a cosine decay of the learning rate."""
    draw = random.Random(seed)
    tokenizer = trained.client.get_tokenizer()
    lessons = [conversation(tokenizer, question, answer) for question, answer in answers.items()]
    for step in range(start + 1, start + steps + 1):
        share = (step - start) / steps
        rate = learning_rate * min(1.0, share * 10) * 0.5 * (1 + math.cos(math.pi * share))
        passed = trained.client.forward_backward(draw.sample(lessons, min(4, len(lessons))), "cross_entropy")
        trained.client.optim_step(types.AdamParams(learning_rate=rate + 1e-5)).result()
        trained.losses.append(passed.result().metrics["loss:sum"])
        if save_every and step % save_every == 0:
            name = f"step-{step:04d}"
            trained.saved[name] = trained.client.save_state(name).result().path
        on_step(step)
    return trained


def reinforce(server: LiveServer, key: str, trained: Trained, steps: int, *, group: int = 8) -> Trained:
    """Policy gradients on a reward that the script computes itself and posts: the share of sampled tokens below 64."""
    tokenizer = trained.client.get_tokenizer()
    user = [{"role": "user", "content": "What do we carry?"}]
    prompt = tokenizer.apply_chat_template(user, add_generation_prompt=True, return_dict=False)
    params = types.SamplingParams(max_tokens=16, temperature=1.0, seed=1)
    for step in range(1, steps + 1):
        sampler = trained.client.save_weights_and_get_sampling_client()
        sequences = sampler.sample(types.ModelInput.from_ints(prompt), group, params).result().sequences
        rewards = [sum(token < 64 for token in each.tokens) / max(1, len(each.tokens)) for each in sequences]
        mean = sum(rewards) / len(rewards)
        data = [rollout(prompt, each, advantage=reward - mean) for each, reward in zip(sequences, rewards, strict=True)]
        passed = trained.client.forward_backward(data, "importance_sampling")
        trained.client.optim_step(types.AdamParams(learning_rate=8e-3)).result()
        trained.losses.append(passed.result().metrics["loss:sum"])
        lengths = [len(each.tokens) for each in sequences]
        post_points(server, key, trained.run_id, step, reward=mean, response_tokens=sum(lengths) / len(lengths))
    return trained


def rollout(prompt: Sequence[int], sequence: Any, *, advantage: float) -> types.Datum:
    tokens, before = list(sequence.tokens), len(prompt) - 1
    text = [*prompt, *tokens]
    return types.Datum(
        model_input=types.ModelInput.from_ints(text[:-1]),
        loss_fn_inputs={
            "target_tokens": text[1:],
            "logprobs": [0.0] * before + list(sequence.logprobs),
            "advantages": [0.0] * before + [advantage] * len(tokens),
        },
    )


def post_points(server: LiveServer, key: str, run_id: str, step: int, **values: float) -> None:
    """As a training script logs series of its own to its run."""
    with server.http(key) as http:
        answer = http.post(f"training_runs/{run_id}/metrics", json={"points": [{"step": step, "values": values}]})
        assert answer.status_code == 200, answer.text


def create(client: Any, *, rank: int = 16, seed: int = 1, **metadata: str) -> Trained:
    made = client.create_lora_training_client(base_model=MODEL, rank=rank, seed=seed, user_metadata=metadata)
    return Trained(made.model_id, made)


def resume(client: Any, path: str, **metadata: str) -> Trained:
    made = client.create_training_client_from_state_with_optimizer(path, user_metadata=metadata)
    return Trained(made.model_id, made)


@dataclass(frozen=True, slots=True)
class Showcase:
    """Ids for the pages that show one thing."""

    main_run: str  # Ann's: a crash, checkpoints, a branch, series of its own
    branch_run: str
    reward_run: str
    ben_run: str


def fill(server: LiveServer, *, steps: int = 120) -> Showcase:
    """Train as two users do. The server is killed and started again while the first run trains."""
    with service(server, ANN) as ann, service(server, BEN) as ben, ThreadPoolExecutor(4) as threads:
        main = create(ann, rank=32, name="belay-sft", dataset="climbs-v2", stage="sft")
        is_half_way = threading.Event()

        def on_step(step: int) -> None:
            answered = min(1.0, math.exp(-main.losses[-1] / 200))
            if step % 2 == 0:
                post_points(server, ANN, main.run_id, step, answered=answered)
            if step == steps // 2 + 5:
                is_half_way.set()

        training = threads.submit(finetune, main, steps, save_every=steps // 4, on_step=on_step)
        while not is_half_way.wait(0.1):
            if training.done():
                break
        if not training.done():
            server.kill()
            server.start()
        training.result()
        main.client.save_weights_for_sampler("belay-1").result()

        first = list(main.saved.values())[1]
        branch = resume(ann, first, name="belay-sft-low-rate", dataset="climbs-v2", stage="sft")
        finetune(branch, steps // 2, learning_rate=1e-3, save_every=steps // 4, seed=5, start=steps // 2)
        reward = create(ann, rank=8, seed=3, name="belay-rl", stage="rl")
        reinforce(server, ANN, reward, max(6, steps // 4))
        reward.saved["best"] = reward.client.save_state("best").result().path
        kept = [
            finetune(
                create(ben, rank=rank, seed=rank, name=f"sweep-rank-{rank}", owner_note="nightly sweep"),
                steps // 3,
                save_every=steps // 6,
                seed=rank,
            )
            for rank in (4, 16)
        ]
        _keep_house(server, main, kept[0])
    return Showcase(main.run_id, branch.run_id, reward.run_id, kept[1].run_id)


@contextmanager
def training(server: LiveServer) -> Iterator[str]:
    """A run of Ann's that trains, and a sampler that samples, for as long as this is open; gives the run's id."""
    is_over, started = threading.Event(), Future[str]()

    def train() -> None:
        with service(server, ANN) as client:
            run = create(client, rank=16, seed=11, name="belay-nightly", dataset="climbs-v3", stage="sft")
            sampler = client.create_sampling_client(base_model=MODEL)
            prompt = types.ModelInput.from_ints(run.client.get_tokenizer().encode("The belayer"))
            count = 0
            while not is_over.is_set():
                finetune(run, 10, learning_rate=2e-3, seed=count, start=count)
                sampler.sample(prompt, 2, types.SamplingParams(max_tokens=24, seed=count)).result()
                count += 10
                if count >= 30 and not started.done():
                    started.set_result(run.run_id)

    work = apart(train)
    work.add_done_callback(lambda done: started.done() or started.set_exception(done.exception() or RuntimeError()))
    try:
        yield started.result(timeout=120)
    finally:
        is_over.set()
        work.result(timeout=120)


def _keep_house(server: LiveServer, main: Trained, ben: Trained) -> None:
    """Publish, expire, delete, limit, refuse: each leaves a trace that some page shows."""
    names = list(main.saved)
    base = f"training_runs/{main.run_id}/checkpoints/weights"
    with server.http(ANN) as http:
        http.post(f"{base}/{names[-1]}/publish").raise_for_status()
        http.put(f"{base}/{names[0]}/ttl", json={"ttl_seconds": 3 * 86_400}).raise_for_status()
        http.post(f"{base}/{names[1]}/verify").raise_for_status()
        http.delete(f"{base}/{names[2]}").raise_for_status()
    with server.http(BEN) as http:
        first = next(iter(ben.saved))
        http.delete(f"training_runs/{ben.run_id}/checkpoints/weights/{first}").raise_for_status()
        http.get(f"training_runs/{main.run_id}")  # a stranger: 404
    with server.http("tml-guess") as http:
        http.get("training_runs")  # refused, and in the audit
    orphan = next((server.data / "checkpoints").rglob("*.tar"), None)
    if orphan is not None:
        Path(orphan.with_name(f"{orphan.stem}-copy.tar")).write_bytes(orphan.read_bytes())
