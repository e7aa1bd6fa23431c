"""Options of a save are checked and copied before it returns."""

from __future__ import annotations

from pathlib import Path

import pytest

from chockstone.checkpoints import Checkpointer
from chockstone.checkpoints.errors import (
    CheckpointError,
)


@pytest.mark.parametrize("name", ["state.json", "STATE.json", "../x", "manifest.json", "COMMIT", "a//b"])
def test_extra_files_cannot_stand_for_ours_or_leave_the_archive(name: str, tmp_path: Path) -> None:
    with Checkpointer(tmp_path) as checkpointer, pytest.raises(CheckpointError, match="files: member"):
        checkpointer.save({"x": 1}, step=1, files={name: b"{}"})


def test_metadata_is_copied_and_must_be_json(tmp_path: Path) -> None:
    metadata = {"tags": ["a"]}
    with Checkpointer(tmp_path) as checkpointer:
        handle = checkpointer.save({"x": 1}, step=1, metadata=metadata, metrics={"loss": float("nan")})
        metadata["tags"].append("b")
        handle.result()
        with pytest.raises(CheckpointError, match="metadata is not plain JSON"):
            checkpointer.save({"x": 1}, step=2, metadata={"tags": object()})

        manifest = checkpointer.checkpoints()[0].manifest

    assert manifest is not None
    assert manifest.metadata == {"tags": ["a"]}
    assert str(manifest.metrics["loss"]) == "nan"
