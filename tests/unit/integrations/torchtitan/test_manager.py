"""Trainings of two ranks with torchtitan's components; see ``support.integrations.torchtitan_training``."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from support.integrations.need_extra import need_extra

need_extra("torchtitan")

from chockstone.checkpoints import Checkpointer  # noqa: E402
from chockstone.integrations.torchtitan import ArchiveCheckpointManager  # noqa: E402
from support.checkpoints.damage import flip  # noqa: E402
from support.integrations import torchtitan_training  # noqa: E402
from support.rank_pool import RankPool, open_pool  # noqa: E402


@pytest.fixture(scope="module")
def ranks() -> Iterator[RankPool]:
    yield from open_pool()


@pytest.fixture(scope="module")
def policies(ranks: RankPool, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    first, second = ranks.run(2, torchtitan_training.try_policies, tmp_path_factory.mktemp("policies"))
    assert first.keys() == second.keys()
    return dict(first)


def losses(place: Path, rank: int, *, started: int) -> dict[int, str]:
    lines = [json.loads(line) for line in (place / f"rank-{rank}.jsonl").read_text().splitlines()]
    return {step: loss for start, step, loss in lines if start == started}


def test_a_killed_training_continues_with_the_same_losses_and_a_flipped_bit_costs_one_interval(
    ranks: RankPool, tmp_path: Path
) -> None:
    outcomes = ranks.outcomes(2, torchtitan_training.train, tmp_path, 7)
    assert outcomes[1] == (False, "died")
    newest = tmp_path / "checkpoint" / "step-6" / "checkpoint.tar"
    flip(newest, newest.stat().st_size // 2)

    found = ranks.run(2, torchtitan_training.train, tmp_path, 0)

    assert [each["started"] for each in found] == [4, 4]
    for rank in (0, 1):
        undisturbed, after = losses(tmp_path, rank, started=0), losses(tmp_path, rank, started=4)
        assert list(after) == [5, 6, 7, 8]
        assert {step: after[step] for step in (5, 6, 7)} == {step: undisturbed[step] for step in (5, 6, 7)}
    kept = sorted(path.name for path in (tmp_path / "checkpoint").glob("step-*"))
    assert kept == ["step-4", "step-6", "step-8"]
    state = Checkpointer(tmp_path / "checkpoint").load()
    assert state["train_state"] == {"step": 8}
    assert state["dataloader"]["world_size"] == 2
    assert state["dataloader"].keys() == {"dp_rank_0", "dp_rank_1", "world_size"}
    assert isinstance(state["dataloader"]["dp_rank_1"], dict)  # and no pickle


def test_checkpoints_of_torchtitan_are_loaded_until_there_are_newer_ones(policies: dict[str, Any]) -> None:
    assert policies["loads the format of torchtitan"] == (True, 2)
    assert policies["prefers the newer step"] == (True, 4, 4)


def test_a_training_starts_with_the_weights_of_another(policies: dict[str, Any]) -> None:
    assert policies["starts from another folder"] == (True, 0, True)


def test_weights_alone_are_not_taken_for_a_whole_checkpoint(policies: dict[str, Any]) -> None:
    kind, says = policies["refuses to continue from weights alone"]

    assert kind in ("RestoreFailed", "RestoreMismatch")
    assert "step-8/checkpoint" in says or "bfloat16" in says


def test_damage_is_an_error_where_no_other_checkpoint_will_do(policies: dict[str, Any]) -> None:
    kind, says = policies["never starts at zero silently"]

    assert kind == "DamagedArchive"
    assert "step 2: " in says and "step 4: " in says
    assert policies["raises for a damaged step"][0] == "TruncatedArchive"


def test_a_disabled_manager_does_nothing(policies: dict[str, Any]) -> None:
    assert policies["does nothing when it is disabled"] == (False, False, False)


def test_the_configuration_of_the_example_has_the_manager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the models of torchtitan, which cannot be imported on every machine without GPUs."""
    name = "torchtitan.models.llama3.config_registry"
    registry: Any = ModuleType(name)
    registry.llama3_debugmodel = lambda: SimpleNamespace(training=SimpleNamespace(steps=10), checkpoint=None)
    monkeypatch.setitem(sys.modules, name, registry)
    monkeypatch.syspath_prepend(str(Path(__file__).parents[4] / "examples"))

    config = importlib.import_module("torchtitan_config").small_llama3()

    assert isinstance(config.checkpoint, ArchiveCheckpointManager.Config)
    assert (config.checkpoint.interval, config.checkpoint.buffers, config.training.steps) == (10, 1, 100)
