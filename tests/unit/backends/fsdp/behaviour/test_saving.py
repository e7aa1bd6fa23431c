"""What several processes save one loads, and the reverse: an archive does not know who wrote it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from chockstone.backends.run_spec import RunSpec
from chockstone.backends.training.base_model import load_base_model
from chockstone.backends.training.run import TrainedRun
from chockstone.checkpoints import Archive, load_state, verify_archive
from support.backends.fsdp import jobs
from support.backends.fsdp.pool import Pool
from support.backends.saving import make_directory, open_desk


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_directory(tmp_path_factory.mktemp("models") / "qwen3", "qwen3", tied=True))


def tree(store: Path, archive: str) -> Any:
    with Archive.open(store / f"{archive}.tar") as opened:
        verify_archive(opened)
        return load_state(opened)


def assert_equal(ours: Any, theirs: Any, path: str = "state") -> None:
    """Bit for bit, and in the same order."""
    assert type(ours) is type(theirs), path
    if isinstance(ours, dict):
        assert list(ours) == list(theirs), path
        for key in ours:
            assert_equal(ours[key], theirs[key], f"{path}.{key}")
    elif isinstance(ours, torch.Tensor):
        assert ours.dtype == theirs.dtype and torch.equal(ours, theirs), path
    else:
        assert ours == theirs, path


def members(store: Path, archive: str) -> list[tuple[str, int]]:
    """Names and sizes, but for those that hold when it was written."""
    with Archive.open(store / f"{archive}.tar") as opened:
        return [(name, member.size) for name, member in opened.members.items() if name.endswith(".safetensors")]


@pytest.mark.parametrize("rank", [4, 0])
def test_one_process_goes_on_with_what_two_have_saved(pair: Pool, directory: str, tmp_path: Path, rank: int) -> None:
    losses = pair.run("save_a_run", directory=directory, store=str(tmp_path), rank=rank, kinds=["weights"])
    run = TrainedRun(load_base_model("tiny", directory), RunSpec(rank=rank, seed=1))

    with open_desk(tmp_path) as desk:
        run.load(desk.wait(desk.checkpoints.load("weights")), with_optimizer=True)
        desk.save(run, "again", kind="weights")
        after = jobs.go_on(run)

    assert losses[0] == losses[1]
    assert after == pytest.approx(losses[0], rel=1e-5)
    assert_equal(tree(tmp_path, "again"), tree(tmp_path, "weights"))
    assert members(tmp_path, "again") == members(tmp_path, "weights")


@pytest.mark.parametrize("rank", [4, 0])
@pytest.mark.parametrize("size", ["pair", pytest.param("three", marks=pytest.mark.soak)])
def test_several_go_on_with_what_one_has_saved(
    request: pytest.FixtureRequest, directory: str, tmp_path: Path, rank: int, size: str
) -> None:
    run = TrainedRun(load_base_model("tiny", directory), RunSpec(rank=rank, seed=1))
    jobs.train(run, steps=3)
    with open_desk(tmp_path) as desk:
        desk.save(run, "weights", kind="weights")
    pool: Pool = request.getfixturevalue(size)

    losses = pool.run(
        "load_a_run", directory=directory, store=str(tmp_path), rank=rank, archive="weights", again="again"
    )

    assert losses[0] == pytest.approx(jobs.go_on(run), rel=1e-5)
    assert_equal(tree(tmp_path, "again"), tree(tmp_path, "weights"))


@pytest.mark.parametrize("rank", [4, 0])
def test_exports_are_what_other_programs_load(pair: Pool, directory: str, tmp_path: Path, rank: int) -> None:
    kinds = ["sampler_weights", "external_weights"]
    pair.run("save_a_run", directory=directory, store=str(tmp_path), rank=rank, kinds=kinds, steps=2)

    for kind in kinds:
        with Archive.open(tmp_path / f"{kind}.tar") as opened:
            verify_archive(opened)
            assert "checkpoint_complete" in opened.members
            name = "model.safetensors" if rank == 0 else "adapter_model.safetensors"
            assert name in opened.members
    if rank == 0:
        state = tree(tmp_path, "external_weights")
        config = json.loads((Path(directory) / "config.json").read_bytes())
        model: Any = AutoModelForCausalLM.from_pretrained(directory, local_files_only=True)
        assert config["tie_word_embeddings"] and "lm_head.weight" not in state["model"]
        assert state["model"].keys() == {name for name, _ in model.named_parameters()}


def test_an_encrypted_export_is_refused(pair: Pool, directory: str, tmp_path: Path) -> None:
    answers = pair.run("refuse_to_encrypt", directory=directory, store=str(tmp_path))

    assert answers[0] == answers[1]
    assert "cannot encrypt" in answers[0]
