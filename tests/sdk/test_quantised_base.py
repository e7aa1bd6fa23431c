"""A quantised base model through the SDK: train, sample, save, load, export and merge."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import tinker
import torch
from peft import PeftModel
from tinker import types
from transformers import AutoModelForCausalLM

from sdk.making import MODEL, create, datum, numbers, step, tokens, train
from support.live import SERVER_PYTHON, LiveServer

Connect = Callable[..., tinker.ServiceClient]
StartServer = Callable[..., LiveServer]


@pytest.fixture
def server(start_server: StartServer) -> LiveServer:
    return start_server("--base-precision=4bit")


def sampled(run: tinker.TrainingClient) -> tuple[list[int], list[float]]:
    sampler = run.save_weights_and_get_sampling_client()
    prompt = types.ModelInput.from_ints(tokens(1, 8))
    result = sampler.sample(prompt, 1, types.SamplingParams(max_tokens=10, seed=3)).result().sequences[0]
    return result.tokens, result.logprobs


def export(server: LiveServer, path: str, directory: Path, *options: str) -> Path:
    command = [SERVER_PYTHON, "-m", "chockstone.cli", "checkpoints", "export", path, str(directory), *options]
    subprocess.run(command, check=True, env=server.env(), timeout=100)
    return directory


def test_a_run_on_a_4bit_base_trains_samples_saves_and_is_exported(
    server: LiveServer, connect: Connect, tmp_path: Path
) -> None:
    service = connect(server)
    run = create(service, train_unembed=False)  # PEFT warns of adapters on a tied output layer
    with server.http() as http:
        report = http.get("server").json()
    assert report["worker"]["base_precision"] == "4bit"

    losses = [loss for loss, _ in train(run, 1)]
    again = step(run, [datum(0, length=12)])
    drawn, logprobs = sampled(run)

    assert losses and again.metrics["loss:sum"] > 0
    text = tokens(1, 8) + drawn
    scored = types.Datum(
        model_input=types.ModelInput.from_ints(text[:-1]),
        loss_fn_inputs={"target_tokens": text[1:], "weights": [1.0] * (len(text) - 1)},
    )
    trained = numbers(run.forward([scored], "cross_entropy").result())[0][7:]
    assert logprobs == pytest.approx(trained, abs=1e-4)
    with pytest.raises(tinker.RequestFailedError, match="quantised to 4bit"):
        create(service, rank=0)

    path = run.save_state("saved").result().path
    other = service.create_training_client_from_state(path)
    assert numbers(other.forward([scored], "cross_entropy").result())[0][7:] == trained

    exported = run.save_weights_for_sampler("exported").result().path
    base = server.models[MODEL]
    adapter = export(server, exported, tmp_path / "adapter")
    adapted = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), adapter)
    merged = AutoModelForCausalLM.from_pretrained(
        export(server, exported, tmp_path / "merged", "--merge", f"--base={base}")
    )
    with torch.no_grad():
        rows = [
            torch.log_softmax(model(torch.tensor([text[:-1]])).logits[0], -1)
            .gather(1, torch.tensor(text[1:])[:, None])[7:, 0]
            .tolist()
            for model in (merged, adapted)
        ]
    assert rows[0] == pytest.approx(trained, abs=1e-3)
    assert rows[1] == pytest.approx(trained, abs=0.5)  # the same adapter on the unquantised base
    assert json.loads((adapter / "adapter_config.json").read_text())["r"] == 4
