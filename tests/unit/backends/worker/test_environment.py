from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from chockstone.backends.supervision.instruction_sets import VARIABLES
from chockstone.backends.supervision.process import WorkerConfig
from chockstone.backends.worker.environment import ARITHMETIC, DECODING, describe_environment, digest_model
from chockstone.engine.runs.recovery.recovery import differences


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "tokenizer.json").write_text("{}")
    save_file({"a": torch.zeros(4, 2)}, tmp_path / "model.safetensors")
    return tmp_path


def test_a_model_keeps_its_digest_wherever_it_lies(model: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    before = digest_model(model)
    moved = model.rename(tmp_path_factory.mktemp("elsewhere") / "model")

    assert digest_model(moved) == before


def test_another_configuration_or_other_weights_are_another_model(model: Path) -> None:
    digests = [digest_model(model)]
    (model / "config.json").write_text('{"layers": 2}')
    digests.append(digest_model(model))
    save_file({"a": torch.zeros(2, 4)}, model / "model.safetensors")
    digests.append(digest_model(model))
    save_file({"a": torch.ones(2, 4)}, model / "model.safetensors")
    digests.append(digest_model(model))
    save_file({"b": torch.zeros(1)}, model / "model-00002.safetensors")
    digests.append(digest_model(model))
    (model / "pytorch_model.bin").write_bytes(b"12345")
    digests.append(digest_model(model))

    assert len(set(digests)) == 6


def test_a_tokenizer_changes_no_bits(model: Path) -> None:
    before = digest_model(model)
    (model / "tokenizer.json").write_text('{"version": 2}')

    assert digest_model(model) == before


def test_what_the_configuration_leaves_open_is_said_as_it_was_decided(model: Path) -> None:
    config = WorkerConfig(models={"tiny": str(model)}, store="unused")

    environment = describe_environment(config, "cpu")

    assert environment["device"] == "cpu" and environment["dtype"] == "float32"
    assert environment["threads"] == torch.get_num_threads()
    assert environment["tokens_per_micro_batch"] > 0
    assert environment["torch"] == torch.__version__
    assert environment["models"] == {"tiny": digest_model(model)}
    assert torch.backends.cpu.get_cpu_capability() in environment["cpu"]


def test_limits_of_the_instruction_sets_are_another_environment(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = WorkerConfig(models={"tiny": str(model)}, store="unused")
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    before = describe_environment(config, "cpu")
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
    after = describe_environment(config, "cpu")

    assert differences(before, after, "tiny") == [
        "instruction_sets was 'not limited' and is 'ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16'; numbers may differ"
    ]
    earlier = {name: value for name, value in before.items() if name != "instruction_sets"}  # of an older version
    assert differences(earlier, before, "tiny") == []


def test_an_environment_that_tells_no_arithmetic_had_the_first(model: Path) -> None:
    now = describe_environment(WorkerConfig(models={"tiny": str(model)}, store="unused"), "cpu")
    earlier = {name: value for name, value in now.items() if name not in ("arithmetic", "decoding")}

    assert differences(earlier, now, "tiny") == [
        f"arithmetic was 1 and is {ARITHMETIC}; numbers may differ",
        f"decoding was 1 and is {DECODING}; sampled tokens may differ",
    ]
    assert differences({}, now, "tiny") == []
