"""Who serves samples when vLLM computes other log-probabilities than the trainer: vLLM is a loopback server here.

That server answers over the base model itself and ignores adapters, so it is exact for a new adapter and wrong for a
trained one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tinker
from tinker import types
from typer.testing import CliRunner

from chockstone.cli.app import app
from sdk.making import MODEL, create, tokens, train
from support.api.loopback_server import ServerThread
from support.live import LiveServer
from support.vllm.model_stub import ModelStub
from support.vllm.stub import running

LENGTH = 5  # tokens of a sample: so those of the tests are told from the probe's


@pytest.fixture
def vllm(models: dict[str, Path]) -> Iterator[ModelStub]:
    stub = ModelStub(MODEL, models[MODEL])
    with ServerThread(lambda: running(stub)):
        yield stub


@pytest.fixture
def live(models: dict[str, Path], vllm: ModelStub, tmp_path: Path) -> Iterator[LiveServer]:
    flags = ("--sampler=vllm", f"--vllm-url={vllm.url}", "--sampler-gap-limit=0.05")
    with LiveServer({MODEL: models[MODEL]}, tmp_path, *flags) as server:
        yield server


def sampled_by_vllm(stub: ModelStub) -> int:
    return len([body for body in stub.requests if body["max_tokens"] == LENGTH])


def ask(server: LiveServer, route: str) -> dict[str, Any]:
    with server.http() as http:
        answer: dict[str, Any] = http.get(route).json()
    return answer


def test_the_worker_samples_from_weights_that_vllm_does_not_apply(
    live: LiveServer, vllm: ModelStub, connect: Callable[..., tinker.ServiceClient]
) -> None:
    service, prompt = connect(live), types.ModelInput.from_ints(tokens(3))
    params = types.SamplingParams(max_tokens=LENGTH, stop=[], seed=3)
    run = create(service)
    fresh = run.save_weights_for_sampler("fresh").result().path
    train(run, 3)
    trained = run.save_weights_for_sampler("trained").result().path
    samplers = [
        service.create_sampling_client(base_model=MODEL),
        *(service.create_sampling_client(model_path=path) for path in (fresh, trained)),
    ]

    found = [sampler.sample(prompt, 1, params).result().sequences[0] for sampler in samplers]

    assert sampled_by_vllm(vllm) == 2
    text = types.ModelInput.from_ints([*tokens(3), *found[2].tokens])
    exact = samplers[2].compute_logprobs(text).result()[-LENGTH:]
    np.testing.assert_allclose(found[2].logprobs, exact, atol=1e-4, rtol=0)
    gaps = {each.get("tinker_path"): each["gaps"][0] for each in ask(live, "samplers")["samplers"]}
    assert [gaps[path]["is_within_limit"] for path in (None, fresh, trained)] == [True, True, False]
    assert max(gaps[path]["largest"] for path in (None, fresh)) < 1e-4 < 0.05 < gaps[trained]["mean"]
    [problem] = ask(live, "server")["problems"]
    assert problem["kind"] == "sampler_gap" and vllm.url in problem["what"]
    assert "sampler gap above the limit" in live.log()

    live.kill()
    live.start()

    kept = ask(live, "checkpoints")["checkpoints"]
    assert {each["tinker_path"]: each["sampler_gap"] for each in kept} == {
        path: gaps[path]["mean"] for path in (fresh, trained)
    }
    environment = {"TINKER_BASE_URL": live.url, "TINKER_API_KEY": live.key}
    checked = CliRunner().invoke(app, ["samplers", "check", trained], env=environment)
    assert checked.exit_code == 1, checked.output
    assert "0.05  above the limit" in checked.output and "the worker samples from these weights" in checked.output
