"""Adapters and weights of other programs on a real server: imported, sampled, trained on and exported again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import peft
import pytest
import tinker
import torch
from safetensors.torch import load_file, save_file
from tinker import types
from torch.distributed import checkpoint as dcp
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner, Result

from chockstone.cli.app import app
from chockstone.cli.output.exit_codes import ExitCode
from sdk.making import MODEL, tokens
from support.live import LiveServer

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
PROMPT = tokens(5, 24)


def make_adapter(model: Path, directory: Path, *, alpha: int = 32, targets: list[str] = TARGETS, **options: Any) -> Any:
    """A PEFT adapter with random matrices, saved as PEFT saves it; the model with it."""
    base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    settings = peft.LoraConfig(r=4, lora_alpha=alpha, target_modules=targets, task_type="CAUSAL_LM", **options)
    adapted = peft.get_peft_model(base, settings).eval()
    generator = torch.Generator().manual_seed(7)
    for name, weight in adapted.named_parameters():
        if "lora_" in name:
            weight.data = torch.randn(weight.shape, generator=generator) * 0.1
    adapted.save_pretrained(directory)
    return adapted


def logprobs_of(model: Any) -> np.ndarray[Any, Any]:
    """Of each token of the prompt after the first, by the model itself."""
    ids = torch.tensor([PROMPT])
    with torch.no_grad():
        found = torch.log_softmax(model(input_ids=ids).logits[0, :-1].double(), dim=-1)
    return np.asarray(found.gather(1, ids[0, 1:, None])[:, 0])


def sampled_logprobs(service: tinker.ServiceClient, path: str) -> np.ndarray[Any, Any]:
    sampler = service.create_sampling_client(model_path=path)
    found = sampler.compute_logprobs(types.ModelInput.from_ints(PROMPT)).result()
    return np.asarray(found[1:], np.float64)


def command(live: LiveServer, directory: Path, *words: str) -> Result:
    where = ["--server", live.url, "--key", live.key]
    return CliRunner().invoke(app, ["import", str(directory), "--model", MODEL, *where, *words])


def import_(live: LiveServer, directory: Path, *words: str) -> dict[str, Any]:
    done = command(live, directory, "--json", *words)
    assert done.exit_code == 0, done.output
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def exported(service: tinker.ServiceClient, live: LiveServer, path: str) -> dict[str, torch.Tensor]:
    """The adapter that a run created from the checkpoint exports."""
    run = service.create_training_client_from_state(path)
    weights = run.save_weights_external("out").result().path
    _, _, run_id, kind, name = weights.split("/")
    with live.http() as http:
        urls = http.get(f"training_runs/{run_id}/checkpoints/{kind}/{name}/external_weights_urls").json()["urls"]
        content = http.get(urls["adapter_model.safetensors"]).content
    target = live.home / f"{run_id}.safetensors"
    target.write_bytes(content)
    return load_file(target)


def test_an_adapter_comes_in_and_leaves_with_the_same_bits(
    live: LiveServer, service: tinker.ServiceClient, tmp_path: Path
) -> None:
    adapted = make_adapter(live.models[MODEL], tmp_path / "adapter")

    found = import_(live, tmp_path / "adapter", "--name", "start")

    path = found["tinker_path"]
    assert found["format"] == "PEFT" and path.endswith("/weights/start")
    assert found["receipt"]["untrained_layers"] == []
    assert np.abs(sampled_logprobs(service, path) - logprobs_of(adapted)).max() < 1e-4
    given, back = load_file(tmp_path / "adapter" / "adapter_model.safetensors"), exported(service, live, path)
    assert given.keys() == back.keys()
    assert all(torch.equal(given[key], back[key]) for key in given)


def test_a_run_continues_from_an_imported_adapter(
    live: LiveServer, service: tinker.ServiceClient, tmp_path: Path
) -> None:
    adapted = make_adapter(live.models[MODEL], tmp_path / "adapter", targets=["q_proj", "v_proj"])
    path = import_(live, tmp_path / "adapter")["tinker_path"]
    inputs = {"target_tokens": PROMPT[1:], "weights": [1.0] * len(PROMPT[1:])}
    text = [types.Datum(model_input=types.ModelInput.from_ints(PROMPT[:-1]), loss_fn_inputs=inputs)]

    run = service.create_training_client_from_state_with_optimizer(path)
    losses = []
    for _ in range(2):
        losses.append(run.forward_backward(text, "cross_entropy").result().metrics["loss:sum"])
        run.optim_step(types.AdamParams(learning_rate=1e-4)).result()

    assert losses[0] == pytest.approx(-logprobs_of(adapted).sum(), abs=1e-2)
    assert losses[1] < losses[0]


@pytest.mark.parametrize(
    "options", [{"alpha": 20}, {"alpha": 3, "use_rslora": True}, {"targets": ["q_proj", "down_proj"]}], ids=str
)
def test_an_adapter_of_another_scale_or_of_fewer_layers_computes_the_same(
    live: LiveServer, service: tinker.ServiceClient, tmp_path: Path, options: dict[str, Any]
) -> None:
    adapted = make_adapter(live.models[MODEL], tmp_path / "adapter", **options)

    path = import_(live, tmp_path / "adapter")["tinker_path"]

    assert np.abs(sampled_logprobs(service, path) - logprobs_of(adapted)).max() < 1e-4


def test_checkpoints_of_tuft_skyrl_and_dcp_are_imported(
    live: LiveServer, service: tinker.ServiceClient, tmp_path: Path
) -> None:
    expected = logprobs_of(make_adapter(live.models[MODEL], tmp_path / "tuft" / "adapter", alpha=16))
    (tmp_path / "tuft" / "metadata.json").write_text("{}")
    (tmp_path / "skyrl" / "policy").mkdir(parents=True)
    (tmp_path / "tuft" / "adapter").rename(tmp_path / "skyrl" / "policy" / "lora_adapter")
    (tmp_path / "skyrl" / "policy" / "model_world_size_1_rank_0.pt").write_bytes(b"a pickle")
    inner = tmp_path / "skyrl" / "policy" / "lora_adapter"
    state = {"model": load_file(inner / "adapter_model.safetensors")}
    dcp.save(state, checkpoint_id=str(tmp_path / "dcp"), no_dist=True)

    skyrl = import_(live, tmp_path / "skyrl")
    from_dcp = import_(live, tmp_path / "dcp", "--alpha", "16")
    inner.rename(tmp_path / "tuft" / "adapter")
    tuft = import_(live, tmp_path / "tuft")

    assert [found["format"] for found in (tuft, skyrl, from_dcp)] == ["TuFT", "SkyRL", "torch DCP"]
    for found in (tuft, skyrl, from_dcp):
        assert np.abs(sampled_logprobs(service, found["tinker_path"]) - expected).max() < 1e-4


def test_full_weights_are_imported_from_dcp_and_from_a_model_directory(
    live: LiveServer, service: tinker.ServiceClient, tmp_path: Path
) -> None:
    model = AutoModelForCausalLM.from_pretrained(live.models[MODEL], dtype=torch.float32).eval()
    generator = torch.Generator().manual_seed(3)
    for weight in model.parameters():
        weight.data += torch.randn(weight.shape, generator=generator) * 0.01
    dcp.save({"model": model.state_dict()}, checkpoint_id=str(tmp_path / "dcp"), no_dist=True)
    model.save_pretrained(tmp_path / "hf")

    for directory in (tmp_path / "dcp", tmp_path / "hf"):
        found = import_(live, directory)
        assert found["rank"] == 0
        assert np.abs(sampled_logprobs(service, found["tinker_path"]) - logprobs_of(model)).max() < 1e-4


def test_an_adapter_of_another_model_is_refused_with_the_tensor(live: LiveServer, tmp_path: Path) -> None:
    make_adapter(live.models[MODEL], tmp_path / "adapter")
    file = tmp_path / "adapter" / "adapter_model.safetensors"
    tensors = load_file(file)
    key = next(iter(tensors))
    save_file({**tensors, key: torch.zeros(4, 7)}, file)

    done = command(live, tmp_path / "adapter")

    assert done.exit_code == ExitCode.USAGE
    assert key in done.stderr and "[4, 7]" in done.stderr
