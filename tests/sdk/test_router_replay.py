"""Router replay through the unmodified SDK: samples are trained with the experts that they were sampled with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import tinker
import torch
from tinker import types

from sdk.making import ADAM, numbers
from support.live import LiveServer
from support.tiny_experts import tie_routers, tiny_experts
from support.tiny_models import tiny_tokenizer

MODEL = "tied-experts"
PROMPT = [number * 7 % 97 for number in range(11)]


@pytest.fixture(scope="module")
def tied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tied")
    tie_routers(tiny_experts()).save_pretrained(directory)
    tiny_tokenizer().save_pretrained(directory)
    return directory


def sample(run: tinker.TrainingClient) -> list[types.SampledSequence]:
    sampler = run.save_weights_and_get_sampling_client()
    params = types.SamplingParams(max_tokens=20, stop=[], seed=3)
    return list(sampler.sample(types.ModelInput.from_ints(PROMPT), 4, params).result().sequences)


def datum(text: list[int]) -> types.Datum:
    return types.Datum(
        model_input=types.ModelInput.from_ints(text[:-1]),
        loss_fn_inputs={"target_tokens": text[1:], "weights": [1.0] * (len(text) - 1)},
    )


def datums(sequences: list[types.SampledSequence]) -> list[types.Datum]:
    return [datum(PROMPT + list(sequence.tokens)) for sequence in sequences]


def difference(rows: list[list[float]], sequences: list[types.SampledSequence]) -> float:
    return max(
        float((torch.tensor(row[len(PROMPT) - 1 :]) - torch.tensor(sequence.logprobs)).abs().max())
        for row, sequence in zip(rows, sequences, strict=True)
    )


@pytest.fixture
def serve(tied: Path, tmp_path: Path) -> Iterator[Callable[..., LiveServer]]:
    """Starts a server of the model; stopped after the clients are closed."""
    servers: list[LiveServer] = []

    def start(*flags: str) -> LiveServer:
        server = LiveServer({MODEL: tied}, tmp_path, *flags)
        servers.append(server)
        server.start()
        return server

    yield start
    for server in servers:
        server.__exit__(None, None, None)


def test_trainer_and_sampler_agree_and_a_killed_server_trains_with_the_same_experts(
    serve: Callable[..., LiveServer], connect: Callable[..., tinker.ServiceClient]
) -> None:
    """After the kill, the run is computed again from its journal. The server has no records of samples then."""
    server = serve()
    run = connect(server).create_lora_training_client(base_model=MODEL, rank=4, seed=1)
    for _ in range(2):
        sequences = sample(run)
        trained = numbers(run.forward_backward(datums(sequences), "cross_entropy").result())
        assert difference(trained, sequences) < 1e-4
        run.optim_step(ADAM).result()
    never_sampled = [datum(PROMPT[::-1])]
    before = numbers(run.forward(never_sampled, "cross_entropy").result())

    server.kill()
    server.start()

    assert numbers(run.forward(never_sampled, "cross_entropy").result()) == before


def test_replay_can_be_turned_off(
    serve: Callable[..., LiveServer], connect: Callable[..., tinker.ServiceClient]
) -> None:
    run = connect(serve("--router-replay=off")).create_lora_training_client(base_model=MODEL, rank=4, seed=1)
    sequences = sample(run)

    trained = numbers(run.forward(datums(sequences), "cross_entropy").result())

    assert difference(trained, sequences) > 1e-2
