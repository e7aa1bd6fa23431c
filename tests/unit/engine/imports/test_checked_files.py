from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from chockstone.backends.protocol import LayoutReply, RunSpec
from chockstone.engine.imports.checked_files import CheckedFiles, files_of, shapes_of
from chockstone.engine.imports.uploads import WeightUpload, WeightUploads, new_upload_id
from chockstone.wire.failures import BadRequest
from support.adapters import adapter_files
from support.engine.fake_backend import LAYERS, SCALE, shapes_of_run

SPEC = RunSpec(rank=4, seed=1)


def layout(spec: RunSpec = SPEC) -> LayoutReply:
    run = {"spec": spec.to_json(), "layout": [[name, shape] for name, shape in shapes_of_run(spec)]}
    return LayoutReply(run=run, scale=SCALE)


def uploaded(directory: Path, files: dict[str, bytes], spec: RunSpec = SPEC) -> tuple[WeightUploads, WeightUpload]:
    uploads = WeightUploads(directory / "uploads")
    upload = WeightUpload(
        upload_id=new_upload_id(),
        owner="ann",
        run_id="s:train:0",
        name="imported",
        base_model="tiny",
        spec=spec.to_json(),
        optimizer={},
        project_id=None,
        files=files_of(spec, shapes_of(layout(spec))),
        expires_at=datetime.now(UTC) + timedelta(hours=1),
    )
    uploads.add(upload, reserve_bytes=0)
    for name, content in files.items():
        uploads.path(upload, name).write_bytes(content)
    return uploads, upload


def test_files_may_be_as_large_as_rank_and_shapes_allow() -> None:
    small, large = (files_of(spec, shapes_of(layout(spec))) for spec in (SPEC, RunSpec(rank=8, seed=1)))

    numbers = sum(4 * (4 * 4 + 3 * 4) for _ in LAYERS)
    assert large["adapter_model.safetensors"] - small["adapter_model.safetensors"] == numbers
    assert list(files_of(RunSpec(rank=0, seed=1), {"w": (3, 4)})) == ["model.safetensors"]


def test_the_receipt_says_what_was_read_and_changed(tmp_path: Path) -> None:
    uploads, upload = uploaded(tmp_path, adapter_files(lora_alpha=64))

    checked = CheckedFiles.open(uploads, upload, layout())

    assert checked.receipt["lora_B_multiplied_by"] == 64 / 4 / SCALE
    assert (checked.receipt["rank"], checked.receipt["alpha"]) == (4, 64.0)
    assert len(checked.receipt["files"]["adapter_model.safetensors"]["sha256"]) == 64
    assert len(checked.receipt["tensors"]) == 2 * len(LAYERS)
    checked.close()


def test_a_rank_other_than_the_announced_one_is_refused(tmp_path: Path) -> None:
    uploads, upload = uploaded(tmp_path, adapter_files(8))

    with pytest.raises(BadRequest, match="has the rank 8"):
        CheckedFiles.open(uploads, upload, layout())
