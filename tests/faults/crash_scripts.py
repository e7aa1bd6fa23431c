"""Training scripts as users write them, under which test_crashes.py kills the server. Run as a script.

Each script is seeded and asks for everything in a fixed order, so that two runs of it hear the same
numbers, to the last bit. What it hears goes into its notebook, which says a line for each note, so
that whoever kills servers knows how far it is. It knows nothing of crashes.

    python crash_scripts.py NOTES SCRIPT[:SIZE]...

runs the scripts at the same time, one session each, against ``TINKER_BASE_URL``, and writes what they
heard, and the paths of what they saved, into NOTES. Only one of them should sample: what is sampled
together is computed together, and then its bits are those of the company it keeps.
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any

import httpx
import tinker
from tinker import types

MODEL = "tiny-qwen3"
VOCABULARY = 512
ADAM = types.AdamParams(learning_rate=1e-2)
NEWEST = "newest"
FINISH_SECONDS = 60.0


@dataclass
class Notebook:
    """What a script heard, and where it saved its state."""

    script: str
    heard: list[Any] = field(default_factory=list)
    saved: dict[str, str] = field(default_factory=dict)
    longest_wait: float = 0.0
    _last: float = field(default_factory=time.monotonic)

    def hear(self, what: str, value: Any) -> None:
        now = time.monotonic()
        self.longest_wait = max(self.longest_wait, now - self._last)
        self._last = now
        self.heard.append([what, value])
        print(f"{self.script} {len(self.heard)} {what}", flush=True)

    def hear_pass(self, output: Any) -> None:
        logprobs = [out["logprobs"].data for out in output.loss_fn_outputs if "logprobs" in out]
        self.hear("pass", {"metrics": output.metrics, "logprobs": logprobs})

    def hear_step(self, output: Any) -> None:
        self.hear("step", output.metrics)

    def hear_sample(self, output: Any) -> None:
        self.hear("sample", [[each.tokens, each.logprobs, each.stop_reason] for each in output.sequences])

    def hear_path(self, what: str, path: str) -> None:
        """A path as it is in every session."""
        run_id, _, name = path.removeprefix("tinker://").partition("/")
        self.hear(what, [run_id.partition(":")[2], name])

    def keep(self, label: str, path: str) -> None:
        self.hear_path("saved", path)
        self.saved[label] = path


def tokens(seed: int, length: int) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(VOCABULARY) for _ in range(length)]


def datum(seed: int, length: int) -> types.Datum:
    text = tokens(seed, length + 1)
    given: Any = {"target_tokens": text[1:], "weights": [1.0] * length}
    return types.Datum(model_input=types.ModelInput.from_ints(text[:-1]), loss_fn_inputs=given)


def batch(seed: int) -> list[types.Datum]:
    return [datum(100 * seed + index, length=12 + 5 * index) for index in range(3)]


def sft(service: tinker.ServiceClient, notes: Notebook, steps: int) -> None:
    """Accumulated gradients, the next step asked for before this one's results are read, and saves all the way."""
    run = service.create_lora_training_client(base_model=MODEL, rank=4, seed=1)
    asked: list[tuple[Callable[[Any], None], Any]] = []

    def read(left: int) -> None:
        while len(asked) > left:
            hear, future = asked.pop(0)
            hear(future.result())

    for step in range(steps):
        asked.append((notes.hear_pass, run.forward_backward(batch(2 * step), "cross_entropy")))
        asked.append((notes.hear_pass, run.forward_backward(batch(2 * step + 1), "cross_entropy")))
        asked.append((notes.hear_step, run.optim_step(ADAM)))
        asked.append((lambda told: notes.hear_path("newest", told.path), run.save_state(NEWEST, overwrite=True)))
        if step == steps // 3:
            read(0)
            notes.keep("third", run.save_state("third").result().path)
        if step == 2 * steps // 3:
            read(0)
            run.forward_backward(batch(999), "cross_entropy").result()  # never stepped on: the load drops it
            run.load_state_with_optimizer(notes.saved["third"]).result()
            notes.hear("loaded", "third")
        read(4)  # of the step before
    asked.append((notes.hear_pass, run.forward(batch(5), "cross_entropy")))
    read(0)
    notes.keep("final", run.save_state("final").result().path)


def rl(service: tinker.ServiceClient, notes: Notebook, steps: int) -> None:
    """Samplers without a name and with one, one sample after another, and a run that goes on from another's state."""
    run = service.create_lora_training_client(base_model=MODEL, rank=8, seed=2)
    for step in range(steps):
        if step == steps // 2:
            path = run.save_state("half").result().path
            notes.keep("half", path)
            run = service.create_training_client_from_state_with_optimizer(path)
        sampler = run.save_weights_and_get_sampling_client()
        data = [each for prompt in range(2) for each in rollouts(sampler, notes, seed=10 * step + prompt)]
        passed = run.forward_backward(data, "importance_sampling")
        stepped = run.optim_step(ADAM)
        notes.hear_pass(passed.result())
        notes.hear_step(stepped.result())
        if step % 3 == 2:
            told = run.save_weights_for_sampler(f"policy-{step}").result()
            notes.hear_path("policy", told.path)
            rollouts(service.create_sampling_client(told.path), notes, seed=step)
    notes.keep("final", run.save_state("final").result().path)


def rollouts(sampler: tinker.SamplingClient, notes: Notebook, *, seed: int) -> list[types.Datum]:
    """Two continuations of a prompt, the one with more even tokens to be preferred."""
    prompt = tokens(seed, 9)
    params = types.SamplingParams(max_tokens=12, temperature=1.0, seed=seed, stop=[])
    output = sampler.sample(types.ModelInput.from_ints(prompt), num_samples=2, sampling_params=params).result()
    notes.hear_sample(output)
    rewards = [sum(token % 2 == 0 for token in each.tokens) / len(each.tokens) for each in output.sequences]
    mean = sum(rewards) / len(rewards)
    data = []
    for each, reward in zip(output.sequences, rewards, strict=True):
        text = [*prompt, *each.tokens]
        unsampled = len(prompt) - 1
        given: Any = {
            "target_tokens": text[1:],
            "logprobs": [0.0] * unsampled + list(each.logprobs or []),
            "advantages": [0.0] * unsampled + [reward - mean] * len(each.tokens),
        }
        data.append(types.Datum(model_input=types.ModelInput.from_ints(text[:-1]), loss_fn_inputs=given))
    return data


def crowd(service: tinker.ServiceClient, notes: Notebook, steps: int) -> None:
    """Three runs of one session, all asked before any is read: small, all weights, and of another seed."""
    runs = [service.create_lora_training_client(base_model=MODEL, rank=rank, seed=seed) for rank, seed in _CROWD]
    for step in range(steps):
        passed = [run.forward_backward(batch(7 * step + index), "cross_entropy") for index, run in enumerate(runs)]
        stepped = [run.optim_step(ADAM) for run in runs]
        for future in passed:
            notes.hear_pass(future.result())
        for future in stepped:
            notes.hear_step(future.result())
    for index, saving in enumerate([run.save_state("final") for run in runs]):
        notes.keep(f"final-{index}", saving.result().path)


_CROWD = ((2, 3), (0, 4), (16, 5))
SCRIPTS = {"sft": sft, "rl": rl, "crowd": crowd}


def run_script(named: str, notebooks: dict[str, Notebook]) -> None:
    """One session of one script. What goes wrong is noted."""
    name, _, size = named.partition(":")
    notes = notebooks[named]
    try:
        service = tinker.ServiceClient()
        SCRIPTS[name](service, notes, int(size or 8))
        finish(service)
    except BaseException:
        notes.hear("failed", traceback.format_exc())


def finish(service: tinker.ServiceClient) -> None:
    """End the session, whatever dies meanwhile.

    Once the server has said that it is ended, SDK 0.36 cancels its heartbeat and waits for it. One that is just on its
    way loses the cancellation now and then (one in twenty), beats on, and the wait has no end; so ask the server.
    """
    session = service.holder.get_session_id()
    try:
        service.close("success").result(timeout=FINISH_SECONDS)
    except TimeoutError:
        beat = httpx.post(
            f"{os.environ['TINKER_BASE_URL']}/api/v1/session_heartbeat",
            json={"session_id": session},
            headers={"x-api-key": os.environ["TINKER_API_KEY"]},
        )
        if beat.status_code != HTTPStatus.GONE:
            raise


def main(path: Path, names: list[str]) -> int:
    notebooks = {named: Notebook(named) for named in names}
    threads = [threading.Thread(target=run_script, args=(named, notebooks)) for named in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    told = {
        named: {"heard": notes.heard, "saved": notes.saved, "longest_wait": notes.longest_wait}
        for named, notes in notebooks.items()
    }
    path.write_text(json.dumps(told))
    failures = [heard for notes in notebooks.values() for what, heard in notes.heard if what == "failed"]
    print(*failures, sep="\n", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
