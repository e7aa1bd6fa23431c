"""Between Ray's checkpoints and ours, without a cluster."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from support.integrations.need_extra import need_extra

need_extra("ray-train")

from pyarrow import fs  # noqa: E402
from ray.train import Checkpoint  # noqa: E402

from chockstone.checkpoints import Checkpointer  # noqa: E402
from chockstone.checkpoints.errors import InvalidName  # noqa: E402
from chockstone.integrations.ray_train import from_ray, to_ray  # noqa: E402
from chockstone.integrations.ray_train.conversion import store_url  # noqa: E402


def test_a_state_goes_to_ray_and_back(tmp_path: Path) -> None:
    place = tmp_path / "a place"
    with Checkpointer(place, prefix="run-1") as checkpointer:
        checkpointer.save({"x": np.arange(5)}, step=1).result()
        checkpointer.save({"x": np.arange(6)}, step=2).result()
        ray_checkpoint = to_ray(checkpointer)

    assert isinstance(ray_checkpoint, Checkpoint)
    assert ray_checkpoint.path == str(place / "run-1")
    assert from_ray(ray_checkpoint).load()["x"].tolist() == list(range(6))


def test_a_copy_that_ray_made_is_read_as_well(tmp_path: Path) -> None:
    with Checkpointer(tmp_path / "here") as checkpointer:
        checkpointer.save({"x": np.arange(5)}, step=1).result()

    copied = to_ray(tmp_path / "here").to_directory(tmp_path / "there")

    assert from_ray(Checkpoint(copied)).load()["x"].tolist() == list(range(5))


def test_a_relative_directory_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    assert to_ray("runs").path == str(tmp_path / "runs")


def test_places_on_object_stores_have_urls() -> None:
    assert store_url(fs.S3FileSystem(anonymous=True, region="us-east-1"), "bucket/run") == "s3://bucket/run"
    assert store_url(fs.GcsFileSystem(anonymous=True), "bucket/run") == "gs://bucket/run"


def test_a_file_system_that_the_library_does_not_reach_is_refused() -> None:
    with pytest.raises(InvalidName, match="'bucket/run' is on the file system 'mock'"):
        store_url(fs._MockFileSystem(), "bucket/run")
