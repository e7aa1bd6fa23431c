from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chockstone.checkpoints.errors import ImportRefused
from chockstone.integrations.formats.reading.mapped_files import SourceDirectory
from chockstone.integrations.formats.reading.orbax_directory import read_orbax
from chockstone.integrations.formats.reading.recognition import read_foreign
from support.integrations.foreign import same

orbax = pytest.importorskip("orbax.checkpoint")

TREE: dict[str, Any] = {
    "params": {"w": np.arange(12, dtype=np.float32).reshape(3, 4), "b": np.zeros(4, dtype=np.int32)},
    "moments": [np.ones(3), np.full(2, 7, dtype=np.float16)],
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tree of a StandardCheckpointer, and steps of a CheckpointManager."""
    place = tmp_path_factory.mktemp("orbax")
    with orbax.StandardCheckpointer() as checkpointer:
        checkpointer.save(place / "tree", TREE)
    with orbax.CheckpointManager(place / "steps") as manager:
        manager.save(40, args=orbax.args.StandardSave(TREE))
    return place


def test_a_tree_is_read_as_numpy_arrays(saved: Path) -> None:
    found = read_foreign(saved / "tree")

    assert found.format == "orbax"
    assert same(found.state["params"], dict(sorted(TREE["params"].items())))
    assert same(list(found.state["moments"]), TREE["moments"])


def test_a_step_of_a_manager_is_read_with_its_number(saved: Path) -> None:
    found = read_foreign(saved / "steps/40")

    assert found.step == 40
    assert same(found.state["params"]["w"], TREE["params"]["w"])


def test_links_and_damage_are_refused(saved: Path, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(saved / "tree", tmp_path / "linked")
    (tmp_path / "linked/extra").symlink_to("/etc")
    shutil.copytree(saved / "tree", tmp_path / "damaged")
    (tmp_path / "damaged/_METADATA").write_text("{")

    for name, complaint in {"linked": "is a link", "damaged": "orbax cannot read"}.items():
        with pytest.raises(ImportRefused, match=complaint):
            read_orbax(SourceDirectory(tmp_path / name))


@pytest.mark.parametrize("chunk", [1 << 40, 3])
def test_arrays_that_claim_more_than_the_files_hold_are_refused_before_they_are_made(
    tmp_path: Path, chunk: int
) -> None:
    """A chunk that was never written reads as zeros, so a few bytes of metadata could stand for terabytes."""
    with orbax.Checkpointer(orbax.PyTreeCheckpointHandler(use_ocdbt=False)) as checkpointer:
        checkpointer.save(tmp_path / "tree", args=orbax.args.PyTreeSave({"w": np.zeros(3, np.float32)}))
    array = tmp_path / "tree/w/.zarray"
    described = json.loads(array.read_text())
    array.write_text(json.dumps({**described, "shape": [1 << 40], "chunks": [chunk]}))

    with pytest.raises(ImportRefused, match="claim more than"):
        read_orbax(SourceDirectory(tmp_path / "tree"))
