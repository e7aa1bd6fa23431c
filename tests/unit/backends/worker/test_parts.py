from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from chockstone.backends.worker.parts import COMPLETE, collect_parts
from chockstone.wire.failures import ServerFailure
from support.backends.saving import full_run, make_base
from support.tiny_models import lora_run, tiny_base


@pytest.mark.parametrize("kind", ["weights", "recovery"])
def test_a_training_archive_holds_the_whole_state(kind: str) -> None:
    run = lora_run(tiny_base())

    parts = collect_parts(run, kind)

    assert parts.state.keys() == run.state().keys()
    assert parts.files == {COMPLETE: b""}


@pytest.mark.parametrize("kind", ["sampler_weights", "external_weights"])
def test_an_adapter_is_saved_as_peft_reads_it(kind: str) -> None:
    parts = collect_parts(lora_run(tiny_base(), rank=4), kind)

    assert parts.state.keys() == {"run", "adapter_model"}
    assert json.loads(parts.files["adapter_config.json"])["r"] == 4
    assert parts.files.keys() == {"adapter_config.json", COMPLETE}


def test_a_full_model_is_sampled_without_its_tokenizer_and_exported_with_it(tmp_path: Path) -> None:
    run = full_run(make_base(tmp_path / "base", dtype=torch.bfloat16))

    sampler, external = (collect_parts(run, kind) for kind in ("sampler_weights", "external_weights"))

    assert sampler.files.keys() == {"config.json", COMPLETE}
    assert "tokenizer.json" in external.files and external.files.keys() > sampler.files.keys()
    assert {weight.dtype for weight in sampler.state["model"].values()} == {torch.float32}
    assert external.state["model"]["lm_head.weight"].dtype == torch.bfloat16
    assert json.loads(external.files["config.json"])["dtype"] == "bfloat16"


def test_a_kind_that_is_none_is_refused() -> None:
    with pytest.raises(ServerFailure, match="no checkpoints of kind 'poem'"):
        collect_parts(lora_run(tiny_base()), "poem")
