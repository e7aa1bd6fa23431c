from __future__ import annotations

import json
from pathlib import Path

import peft
import pytest
import torch
from safetensors.torch import load_file

from chockstone.backends.export.adapter_files import write_adapter
from chockstone.checkpoints.errors import DigestMismatch
from chockstone.wire.failures import BadRequest
from support.backends.saving import assert_same_logits, full_run, live_logits, logits_of, make_base, open_desk
from support.tiny_models import lora_run, tiny_base, tiny_model


@pytest.mark.parametrize("kind", ["sampler_weights", "weights"])
def test_the_files_are_those_of_the_runs_adapter(tmp_path: Path, kind: str) -> None:
    run = lora_run(tiny_base(), train_mlp=False)
    with open_desk(tmp_path / "store") as desk:
        desk.save(run, "one", kind=kind)
        with desk.open("one") as archive:
            write_adapter(archive, tmp_path / "files")

    _, expected = run.peft_files()
    found = load_file(tmp_path / "files" / "adapter_model.safetensors")
    assert sorted(path.name for path in (tmp_path / "files").iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
    ]
    assert set(found) == set(expected)
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    config = json.loads((tmp_path / "files" / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"]) == (4, 32)
    theirs = peft.PeftModel.from_pretrained(tiny_model(), str(tmp_path / "files"))
    assert_same_logits(logits_of(theirs), live_logits(run), tolerance=1e-5)


@pytest.mark.parametrize("kind", ["sampler_weights", "weights"])
def test_a_whole_model_is_refused_with_what_is_supported(tmp_path: Path, kind: str) -> None:
    with open_desk(tmp_path / "store") as desk:
        desk.save(full_run(make_base(tmp_path / "base")), "one", kind=kind)
        with desk.open("one") as archive:
            with pytest.raises(BadRequest, match="rank 0.*LoRA adapters only.*save_weights_external"):
                write_adapter(archive, tmp_path / "files")

    assert not (tmp_path / "files").exists()


@pytest.mark.parametrize("kind", ["sampler_weights", "weights"])
def test_nothing_is_left_of_an_archive_that_is_damaged(tmp_path: Path, kind: str) -> None:
    member = {"sampler_weights": "adapter_model.safetensors", "weights": "weights.safetensors"}[kind]
    with open_desk(tmp_path / "store") as desk:
        desk.save(lora_run(tiny_base()), "one", kind=kind)
        path = desk.store / "one.tar"
        with desk.open("one") as archive:
            place = archive.members[member].end - 1
        content = bytearray(path.read_bytes())
        content[place] ^= 1
        path.write_bytes(content)

        with desk.open("one") as archive, pytest.raises(DigestMismatch):
            write_adapter(archive, tmp_path / "files")

    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["store"]
