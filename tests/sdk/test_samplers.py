"""Samplers through the SDK: what they sample from, that it never changes, and that they share the worker fairly."""

from __future__ import annotations

import asyncio
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import tinker
import torch
from tinker import types

from sdk.making import ADAM, MODEL, batch, create, datum, numbers, step, tokens
from support.live import LiveServer

TOLERANCE = 1e-4
TEXT = tokens(3, 17)
PROMPT = types.ModelInput.from_ints(TEXT)
WITHOUT_END = types.SamplingParams(max_tokens=8000, stop=[])


def scores(sampler: tinker.SamplingClient) -> torch.Tensor:
    return torch.tensor(sampler.compute_logprobs(PROMPT).result()[1:])


def trained_scores(run: tinker.TrainingClient) -> torch.Tensor:
    """What the trainer says of the same text."""
    return torch.tensor(numbers(run.forward([datum(3)], "cross_entropy").result())[0])


def train(run: tinker.TrainingClient, steps: int = 3) -> None:
    for number in range(steps):
        step(run, [*batch(number), datum(3)])


def assert_close(given: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(given, expected, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("rank", [8, 0])
@pytest.mark.parametrize("model", ["tiny-qwen3", "tiny-llama"])
def test_a_sampler_scores_as_its_trainer_does(service: tinker.ServiceClient, model: str, rank: int) -> None:
    run = service.create_lora_training_client(base_model=model, rank=rank, seed=1)
    before = trained_scores(run)
    train(run)
    after = trained_scores(run)

    ephemeral = run.save_weights_and_get_sampling_client()
    named = service.create_sampling_client(run.save_weights_for_sampler("named").result().path)
    of_state = service.create_sampling_client(run.save_state("state").result().path)

    assert (after - before).abs().max() > 0.1, "training changed it"
    for sampler in (ephemeral, named, of_state):
        assert_close(scores(sampler), after)


@pytest.mark.parametrize("rank", [8, 0])
def test_sampled_logprobs_are_what_the_trainer_computes_for_them(service: tinker.ServiceClient, rank: int) -> None:
    run = create(service, rank=rank)
    train(run)
    [sequence] = (
        run.save_weights_and_get_sampling_client()
        .sample(PROMPT, 1, types.SamplingParams(max_tokens=20, stop=[]))
        .result()
        .sequences
    )

    text = TEXT + sequence.tokens
    rows = types.Datum(
        model_input=types.ModelInput.from_ints(text[:-1]),
        loss_fn_inputs={"target_tokens": text[1:], "weights": [1.0] * (len(text) - 1)},
    )
    trained = numbers(run.forward([rows], "cross_entropy").result())[0]

    assert_close(torch.tensor(trained[len(TEXT) - 1 :]), torch.tensor(sequence.logprobs))


def test_a_sampler_is_a_snapshot(service: tinker.ServiceClient) -> None:
    run = create(service)
    train(run, 1)
    named = service.create_sampling_client(run.save_weights_for_sampler("first").result().path)
    ephemeral = run.save_weights_and_get_sampling_client()
    base = service.create_sampling_client(base_model=MODEL)
    then = scores(ephemeral)
    bases = scores(base)

    train(run)

    assert torch.equal(scores(ephemeral), then)
    assert_close(scores(named), then)  # first read now, from the archive
    assert torch.equal(scores(base), bases)
    now = scores(run.save_weights_and_get_sampling_client())
    assert_close(now, trained_scores(run))
    assert (now - then).abs().max() > 0.1


def test_scoring_an_old_sampler_changes_no_live_run(service: tinker.ServiceClient) -> None:
    run, twin = create(service), create(service)
    old = run.save_weights_and_get_sampling_client()
    outputs = []
    for each in (run, twin):
        for number in range(3):
            if each is run:
                scores(old)
            outputs.append(numbers(step(each, batch(number))))

    assert outputs[:3] == outputs[3:]


def test_a_sampler_of_a_base_model_scores_as_an_untrained_run(service: tinker.ServiceClient) -> None:
    assert_close(scores(service.create_sampling_client(base_model=MODEL)), trained_scores(create(service)))


def test_samplers_know_their_base_model_and_tokenizer(
    service: tinker.ServiceClient, models: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = service.create_lora_training_client(base_model="tiny-llama", rank=4)
    samplers = [
        service.create_sampling_client(base_model="tiny-llama"),
        service.create_sampling_client(run.save_weights_for_sampler("a").result().path),
        run.save_weights_and_get_sampling_client(),
    ]
    monkeypatch.chdir(models["tiny-llama"].parent)  # where a name that no hub knows is a directory

    for sampler in samplers:
        assert sampler.get_base_model() == "tiny-llama"
        assert sampler.get_tokenizer().decode(sampler.get_tokenizer().encode("hello")).endswith("hello")


def test_what_there_is_not_cannot_be_sampled_from(service: tinker.ServiceClient) -> None:
    run = create(service)

    with pytest.raises(tinker.BadRequestError, match="no/such"):
        service.create_sampling_client(base_model="no/such")
    for path in (f"tinker://{run.model_id}/sampler_weights/none", "tinker://nobody:train:0/weights/none"):
        with pytest.raises(tinker.NotFoundError):
            service.create_sampling_client(path)
    assert len(scores(service.create_sampling_client(base_model=MODEL))) == 16


CLONE = """
import pickle, sys
from tinker import SamplingClient, types
given = sys.stdin.buffer.read()
clone = SamplingClient.from_sampler_handle(given[1:].decode()) if given[:1] == b"h" else pickle.loads(given[1:])
params = types.SamplingParams(max_tokens=12, seed=9, stop=[])
futures = [clone.sample(types.ModelInput.from_ints([5, 6, 7]), 2, params) for _ in range(5)]
answers = [[one.tokens for one in future.result().sequences] for future in futures]
assert all(answer == answers[0] for answer in answers)
print(answers[0])
"""


def test_clones_in_other_processes_sample_from_the_same_weights(
    live: LiveServer, service: tinker.ServiceClient
) -> None:
    run = create(service)
    train(run)
    sampler = run.save_weights_and_get_sampling_client()
    given = [b"p" + pickle.dumps(sampler), b"p" + pickle.dumps(sampler), b"h" + sampler.get_sampler_handle().encode()]

    clones = [
        subprocess.Popen([sys.executable, "-c", CLONE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=live.env())
        for _ in given
    ]
    for clone, state in zip(clones, given, strict=True):
        assert clone.stdin is not None
        clone.stdin.write(state)
        clone.stdin.close()
        clone.stdin = None
    said = [clone.communicate(timeout=120)[0].decode() for clone in clones]

    params = types.SamplingParams(max_tokens=12, seed=9, stop=[])
    own = sampler.sample(types.ModelInput.from_ints([5, 6, 7]), 2, params).result().sequences
    assert said == [f"{[sequence.tokens for sequence in own]}\n"] * 3
    with live.http() as http:
        joined = http.post("join_sampling_session", json={"sampling_session_id": sampler._sampling_session_id})
    assert joined.json()["client_counter"] == 4, "each clone got a number of its own"


async def test_a_cancelled_sample_frees_its_slots(live: LiveServer, service: tinker.ServiceClient) -> None:
    sampler = await service.create_sampling_client_async(base_model=MODEL)
    short = types.SamplingParams(max_tokens=4, stop=[])
    await sampler.sample_async(PROMPT, 1, short)

    hours = [asyncio.create_task(sampler.sample_async(PROMPT, 2000, WITHOUT_END)) for _ in range(3)]
    await asyncio.sleep(0.5)  # all slots are taken
    for task in hours:
        task.cancel()
    ended = await asyncio.gather(*hours, return_exceptions=True)

    assert all(isinstance(error, asyncio.CancelledError) for error in ended)
    for _ in range(3):
        response = await asyncio.wait_for(sampler.sample_async(PROMPT, 256, short), 60)
        assert len(response.sequences) == 256


def test_a_long_generation_does_not_starve_training(service: tinker.ServiceClient) -> None:
    run = create(service)
    sampler = service.create_sampling_client(base_model=MODEL)
    generation = sampler.sample(PROMPT, 200, WITHOUT_END)
    sampler.sample(PROMPT, 1, types.SamplingParams(max_tokens=1)).result()

    for number in range(10):
        step(run, batch(number))

    assert not generation.done()
    generation.cancel()


def test_much_training_does_not_starve_a_sample(service: tinker.ServiceClient) -> None:
    run = create(service)
    sampler = service.create_sampling_client(base_model=MODEL)
    passes = [run.forward_backward([datum(n, length=250) for n in range(8)], "cross_entropy") for _ in range(10)]
    last = run.optim_step(ADAM)
    passes[0].result()

    [sequence] = sampler.sample(PROMPT, 1, types.SamplingParams(max_tokens=20, stop=[])).result().sequences

    assert len(sequence.tokens) == 20
    assert not last.future().done(), "training was not over before the sample was"
    last.result()
