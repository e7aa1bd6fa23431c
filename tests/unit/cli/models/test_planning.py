"""Plans of models that no test machine could hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")  # it is no part of the plain install

from typer.testing import CliRunner, Result

from chockstone.cli.app import app
from chockstone.cli.models.planning import NoPlan, PlanRequest, plan_model

QWEN3_8B = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "dtype": "bfloat16",
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40960,
    "vocab_size": 151936,
    "tie_word_embeddings": False,
}
MIXTURE_30B = {
    **QWEN3_8B,
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "moe_intermediate_size": 768,
    "intermediate_size": 6144,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "norm_topk_prob": True,
}
GIB = 1 << 30


def write(directory: Path, config: dict[str, Any], **changes: Any) -> Path:
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps({**config, **changes}))
    return directory


def request(directory: Path, **changes: Any) -> PlanRequest:
    facts: dict[str, Any] = {
        "directory": directory,
        "rank": 32,
        "context": 32768,
        "runs": 1,
        "gpu_bytes": 80 * GIB,
        "dtype": "auto",
        "optimizer": "adamw",
        "tokens_per_micro_batch": 0,
    }
    return PlanRequest(**{**facts, **changes})


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(app, ["model", "plan", *map(str, words)], catch_exceptions=False)


def test_a_model_of_8b_is_planned_without_its_weights(tmp_path: Path) -> None:
    planned = plan_model(request(write(tmp_path, QWEN3_8B)))
    plan = planned.plan

    assert planned.parameters == 8_190_735_360
    assert plan.base_bytes == pytest.approx(2 * planned.parameters, rel=0.001)
    assert plan.run.moments_bytes == 8 * planned.trained_parameters
    assert plan.fits
    assert plan.largest_pass.recomputes
    assert 32768 <= plan.longest_context <= 40960
    assert planned.cache_bytes_per_token == 2 * 36 * 8 * 128 * 2


def test_a_mixture_of_30b_is_planned_without_its_weights(tmp_path: Path) -> None:
    planned = plan_model(
        request(write(tmp_path, MIXTURE_30B, num_hidden_layers=4, max_position_embeddings=4096), context=4096)
    )

    assert planned.parameters > 3_000_000_000
    assert planned.plan.base_bytes == pytest.approx(2 * planned.parameters, rel=0.01)
    assert planned.plan.largest_pass.peak_bytes > 0


def test_less_memory_fits_a_shorter_context_and_fewer_runs(tmp_path: Path) -> None:
    directory = write(tmp_path, QWEN3_8B, num_hidden_layers=2, max_position_embeddings=10**6)
    plans = [plan_model(request(directory, gpu_bytes=size * GIB)).plan for size in (12, 24)]

    assert 0 < plans[0].longest_context < plans[1].longest_context
    assert plans[0].most_runs < plans[1].most_runs


def test_the_table_fits_into_80_columns(tmp_path: Path) -> None:
    directory = write(tmp_path, QWEN3_8B, num_hidden_layers=2)

    done = run(directory, "--rank", "16", "--context", "4096", "--gpu-memory", "24GiB", "--runs", "3")

    assert done.exit_code == 0, done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 80
    for part in ("base model", "trained weights", "gradients", "moments", "pass", "KV cache", "total", "It fits."):
        assert part in done.stdout
    assert "Longest context beside 3 runs:" in done.stdout


def test_what_does_not_fit_says_so(tmp_path: Path) -> None:
    directory = write(tmp_path, QWEN3_8B, num_hidden_layers=2)

    done = run(directory, "--gpu-memory", "2GiB", "--context", "2048", "--tokens-per-micro-batch", "2048", "--json")

    assert done.exit_code == 1
    told = json.loads(done.stdout)
    assert told["plan"]["fits"] is False
    assert told["plan"]["total_bytes"] > 2 * GIB


def test_a_directory_without_a_model_is_named(tmp_path: Path) -> None:
    done = run(tmp_path)

    assert done.exit_code == 2
    assert str(tmp_path) in done.stderr
    with pytest.raises(NoPlan):
        plan_model(request(tmp_path))
