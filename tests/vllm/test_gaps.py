"""The gap between real vLLM servers and the worker: small in float32, larger in bfloat16, and who samples then."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tinker
from engines import Engine
from tinker import types

from sdk.making import ADAM, batch, tokens
from support.live import LiveServer

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1200)]
MODEL = "tiny-qwen3"
OF_PROBE = 4  # requests
PROMPT = types.ModelInput.from_ints(tokens(5))
PARAMS = types.SamplingParams(max_tokens=8, stop=[], seed=3)


@contextmanager
def connected(server: LiveServer) -> Iterator[tinker.ServiceClient]:
    client = tinker.ServiceClient(base_url=server.url, api_key=server.key)
    yield client
    client.close("success").result()


def trained(service: tinker.ServiceClient) -> Any:
    run = service.create_lora_training_client(base_model=MODEL, rank=8, seed=1)
    for number in range(3):
        run.forward_backward(batch(number), "cross_entropy").result()
        run.optim_step(ADAM).result()
    return run.save_weights_for_sampler("trained").result().path


def gaps_of(server: LiveServer) -> list[dict[str, Any]]:
    with server.http() as http:
        return [gap for sampler in http.get("samplers").json()["samplers"] for gap in sampler["gaps"]]


def checked(server: LiveServer, path: str) -> dict[str, Any]:
    with server.http() as http:
        answer: dict[str, Any] = http.post("samplers/check", json={"sampler": path}).json()
    return answer


def test_in_float32_vllm_is_exact_and_samples(models: dict[str, Path], tmp_path: Path) -> None:
    with (
        Engine(MODEL, models[MODEL], tmp_path / "vllm", "--logprobs-mode", "processed_logprobs") as engine,
        LiveServer({MODEL: models[MODEL]}, tmp_path, "--sampler=vllm", f"--vllm-url={engine.url}") as server,
        connected(server) as service,
    ):
        path, before = trained(service), engine.requests()

        service.create_sampling_client(base_model=MODEL).sample(PROMPT, 1, PARAMS).result()
        service.create_sampling_client(model_path=path).sample(PROMPT, 1, PARAMS).result()

        assert engine.requests() - before == 2 * (OF_PROBE + 1)
        found = gaps_of(server)
        assert len(found) == 2 and all(gap["is_within_limit"] and gap["tokens"] == 128 for gap in found)
        assert max(gap["largest"] for gap in found) < 1e-4
        again = checked(server, path)
        assert again["served_by"] == "vllm" and again["gaps"][0]["largest"] < 1e-4


def test_in_bfloat16_the_gap_is_found_and_above_the_limit_the_worker_samples(
    models: dict[str, Path], tmp_path: Path
) -> None:
    flags = ("--sampler=vllm", "--sampler-gap-limit=0.0001")
    with (
        Engine(MODEL, models[MODEL], tmp_path / "vllm", "--dtype", "bfloat16") as engine,
        LiveServer({MODEL: models[MODEL]}, tmp_path, *flags, f"--vllm-url={engine.url}") as server,
        connected(server) as service,
    ):
        path, before = trained(service), engine.requests()
        sampler = service.create_sampling_client(model_path=path)

        [sequence] = sampler.sample(PROMPT, 1, PARAMS).result().sequences

        assert engine.requests() - before == OF_PROBE
        [gap] = gaps_of(server)
        assert gap["is_within_limit"] is False and 0.0001 < gap["mean"] < gap["largest"] < 0.5
        text = types.ModelInput.from_ints([*tokens(5), *sequence.tokens])
        exact = np.array(sampler.compute_logprobs(text).result()[-8:], np.float64)
        np.testing.assert_allclose(sequence.logprobs, exact, atol=1e-5, rtol=0)
