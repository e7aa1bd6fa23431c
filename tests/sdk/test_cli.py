"""The ``tinker`` command line, run as a user runs it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import tinker

from sdk.commands import Tinker, parsed, tinker_command
from sdk.making import MODEL, create
from support.live import LiveServer


@pytest.fixture
def run_tinker(live: LiveServer, tmp_path: Path) -> Tinker:
    return tinker_command(live, tmp_path)


def test_version(run_tinker: Tinker) -> None:
    result = run_tinker("version")

    assert result.returncode == 0
    assert tinker.__version__ in result.stdout


def test_auth_status_finds_the_server(run_tinker: Tinker) -> None:
    result = run_tinker("auth", "status")

    assert result.returncode == 0, result.stdout + result.stderr
    assert "not accessible" not in result.stdout


def test_auth_whoami(run_tinker: Tinker) -> None:
    me = parsed(run_tinker("-f", "json", "auth", "whoami"))

    assert "local" in me.values()


def test_model_list(run_tinker: Tinker) -> None:
    everything = parsed(run_tinker("-f", "json", "model", "list"))["models"]
    some = run_tinker("model", "list", "QWEN")

    assert {model["model_name"] for model in everything} == {"tiny-qwen3", "tiny-llama"}
    assert MODEL in some.stdout
    assert "tiny-llama" not in some.stdout


def test_model_list_without_a_match_names_the_organization(run_tinker: Tinker) -> None:
    result = run_tinker("model", "list", "no-such-model")

    assert result.returncode == 1
    assert "tml:organization:local" in result.stdout + result.stderr


def test_run_list_and_info(run_tinker: Tinker, service: tinker.ServiceClient) -> None:
    run = create(service, rank=16)
    path = run.save_state("seen").result().path

    listed = parsed(run_tinker("-f", "json", "run", "list", "--limit", "0"))["runs"]
    info = run_tinker("run", "info", run.model_id)

    found = next(each for each in listed if each["training_run_id"] == run.model_id)
    assert (found["base_model"], found["lora_rank"]) == (MODEL, 16)
    assert found["last_checkpoint"]["tinker_path"] == path
    assert info.returncode == 0, info.stdout + info.stderr
    assert MODEL in info.stdout
    assert "16" in info.stdout


def test_run_info_of_an_unknown_run_fails_soon(run_tinker: Tinker) -> None:
    result = run_tinker("run", "info", "no-such-run")

    assert result.returncode == 1
    assert "not found" in (result.stdout + result.stderr).lower()


def test_a_script_that_knows_only_the_environment_trains(live: LiveServer, tmp_path: Path) -> None:
    """The two lines that the server prints are all that a script needs."""
    script = tmp_path / "script.py"
    script.write_text(
        "import tinker\n"
        "from tinker import types\n"
        "run = tinker.ServiceClient().create_lora_training_client(base_model='tiny-llama', rank=4, seed=1)\n"
        "text = run.get_tokenizer().encode('a stone held fast in a crack')\n"
        "datum = types.Datum(model_input=types.ModelInput.from_ints(text[:-1]),\n"
        "                    loss_fn_inputs={'target_tokens': text[1:], 'weights': [1.0] * (len(text) - 1)})\n"
        "losses = []\n"
        "for _ in range(10):\n"
        "    passed = run.forward_backward([datum], 'cross_entropy')\n"
        "    run.optim_step(types.AdamParams(learning_rate=5e-3)).result()\n"
        "    losses.append(passed.result().metrics['loss:sum'])\n"
        "assert losses[-1] < 0.7 * losses[0], losses\n"
    )

    result = subprocess.run(
        [sys.executable, str(script)], env=live.env(), capture_output=True, text=True, timeout=120, cwd=tmp_path
    )

    assert result.returncode == 0, result.stderr
