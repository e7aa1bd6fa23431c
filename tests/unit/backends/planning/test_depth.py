"""Passes over few layers say what a pass over all of them takes, to the byte."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from benchmarks.families.tiny_model import make_config
from transformers import AutoModelForCausalLM

from chockstone.backends.planning.depth import PassMemory, Repetition, find_repetition, make_shallow
from chockstone.backends.planning.outline import ModelOutline
from chockstone.backends.run_spec import Recomputed, RunSpec

FAMILIES: Final[dict[str, dict[str, Any]]] = {
    "llama": {"num_hidden_layers": 6},
    "qwen3_moe": {"num_hidden_layers": 6, "mlp_only_layers": [0]},
    "deepseek_v3": {"num_hidden_layers": 8, "first_k_dense_replace": 2},
    "gemma3_text": {"num_hidden_layers": 8, "layer_types": ["sliding_attention", "full_attention"] * 4},
    "qwen3_next": {
        "num_hidden_layers": 13,
        "layer_types": [*["linear_attention", "linear_attention", "full_attention"] * 4, "linear_attention"],
    },
}


def outlined(directory: Path, family: str, **changes: Any) -> ModelOutline:
    config = {**make_config(family).to_dict(), **changes}
    (directory / "config.json").write_text(json.dumps(config))
    return ModelOutline(directory, dtype="float32", device="cpu")


@pytest.mark.parametrize(("sequences", "tokens", "recomputed"), [(3, 40, "none"), (1, 300, "all")])
@pytest.mark.parametrize("family", FAMILIES)
def test_few_layers_say_the_same_as_all_layers(
    tmp_path: Path, family: str, sequences: int, tokens: int, recomputed: Recomputed
) -> None:
    outline = outlined(tmp_path, family, **FAMILIES[family])
    run = outline.make_run(RunSpec(rank=4, seed=0))

    predicted = outline.extrapolated_pass(run.spec, sequences, tokens, recomputed)

    assert predicted == outline.whole_pass(run, sequences, tokens, recomputed).peak


def test_runs_that_train_all_weights_are_planned_the_same_way(tmp_path: Path) -> None:
    outline = outlined(tmp_path, "llama", num_hidden_layers=7, vocab_size=20_000)
    run = outline.make_run(RunSpec(rank=0, seed=0))

    predicted = outline.extrapolated_pass(run.spec, 1, 10, "none")

    assert predicted == outline.whole_pass(run, 1, 10, "none").peak


def test_what_few_layers_cannot_say_is_computed_with_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outline = outlined(tmp_path, "llama", num_hidden_layers=7)
    run = outline.make_run(RunSpec(rank=4, seed=0))
    monkeypatch.setattr(Repetition, "extrapolate", lambda *_: None)

    assert outline.tensor_bytes(run, 1, 10, "all") == outline.whole_pass(run, 1, 10, "all").peak


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        ("aaaaaaaa", Repetition(1, 2, 8)),
        ("baaaaaaa", Repetition(1, 2, 8)),
        ("bbbaaaaaaa", Repetition(1, 4, 10)),
        ("aabaabaabaab", Repetition(3, 3, 12)),
        ("aabaabaabaabaa", Repetition(3, 5, 14)),
        ("baabaabaabaab", Repetition(3, 4, 13)),
        ("aaaa", None),
        ("aaaaaaab", None),
        ("abcdefgh", None),
        ("", None),
    ],
)
def test_what_repeats_is_found(kinds: str, expected: Repetition | None) -> None:
    assert find_repetition(kinds) == expected


def test_a_peak_that_grows_less_than_what_is_kept_says_nothing() -> None:
    repetition = Repetition(period=2, few=3, all=11)

    assert repetition.extrapolate(PassMemory(100, 40), PassMemory(110, 50)) == 140
    assert repetition.extrapolate(PassMemory(100, 40), PassMemory(109, 50)) is None


def test_layers_with_other_settings_are_of_another_kind() -> None:
    with torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(make_config("llama"))
        model = type(model)(type(model.config)(**{**model.config.to_dict(), "num_hidden_layers": 8}))
    assert make_shallow(model) is not None

    for number, layer in enumerate(model.model.layers):
        layer.window = number

    assert make_shallow(model) is None
