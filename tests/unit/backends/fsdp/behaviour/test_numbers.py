"""Several processes compute what one does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from benchmarks.families.tiny_model import write_model

from support.backends.fsdp.jobs import INPUTS
from support.backends.fsdp.pool import Pool
from support.backends.saving import make_directory


@pytest.fixture(scope="module")
def untied(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_directory(tmp_path_factory.mktemp("models") / "llama", "llama", tied=False))


@pytest.fixture(scope="module")
def tied(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_directory(tmp_path_factory.mktemp("models") / "qwen3", "qwen3", tied=True))


def assert_close(found: list[dict[str, float]]) -> None:
    """A metric is a sum in which much cancels out, so that its last digits are fewer."""
    worst = {name: max(answer[name] for answer in found) for name in found[0]}
    assert all(value <= (1e-4 if name == "metrics" else 1e-5) for name, value in worst.items()), worst


@pytest.mark.parametrize(("architecture", "rank"), [("untied", 4), ("tied", 0)])
def test_two_processes_follow_one_through_every_loss(
    request: pytest.FixtureRequest, pair: Pool, architecture: str, rank: int
) -> None:
    directory = request.getfixturevalue(architecture)

    found = pair.run("follow_one_process", directory=directory, rank=rank, losses=[*INPUTS], counts=[2])

    assert_close(found)


@pytest.mark.parametrize("spec", [{"rank": 4}, {"rank": 0}, {"rank": 0, "optimizer": "sgd"}])
@pytest.mark.parametrize("architecture", ["untied", "tied"])
def test_two_processes_follow_one_through_batches_of_any_size(
    request: pytest.FixtureRequest, pair: Pool, architecture: str, spec: dict[str, Any]
) -> None:
    directory = request.getfixturevalue(architecture)

    found = pair.run("follow_one_process", directory=directory, losses=["cross_entropy"], counts=[1, 3, 5], **spec)

    assert_close(found)


@pytest.mark.parametrize("rank", [4, 0])
def test_two_processes_follow_one_where_datums_begin_alike(pair: Pool, untied: str, rank: int) -> None:
    found = pair.run(
        "follow_one_process", directory=untied, rank=rank, losses=["ppo", "custom"], counts=[5], budget=60, prompt=20
    )

    assert_close(found)


@pytest.mark.soak
@pytest.mark.parametrize("rank", [4, 0])
@pytest.mark.parametrize("architecture", ["untied", "tied"])
@pytest.mark.parametrize("loss", INPUTS)
@pytest.mark.parametrize("processes", ["pair", "three"])
def test_any_number_of_processes_follows_one_through_anything(
    request: pytest.FixtureRequest, processes: str, architecture: str, rank: int, loss: str
) -> None:
    pool, directory = request.getfixturevalue(processes), request.getfixturevalue(architecture)

    found = pool.run("follow_one_process", directory=directory, rank=rank, losses=[loss], counts=[1, 2, 3, 5, 8])

    assert_close(found)


@pytest.mark.parametrize("rank", [4, 0])
def test_a_model_of_half_precision_is_trained_alike(pair: Pool, tied: str, rank: int) -> None:
    assert max(pair.run("follow_in_half_precision", directory=tied, rank=rank)) <= 2e-2


@pytest.mark.parametrize("modes", [["on", "on"], ["on", "off"], ["off", "on"]], ids="-".join)
@pytest.mark.parametrize("rank", [4, 0])
def test_activation_checkpointing_changes_no_bit(pair: Pool, untied: str, rank: int, modes: list[str]) -> None:
    assert pair.run("recompute_activations", directory=untied, rank=rank, modes=modes) == [True, True]


@pytest.mark.parametrize("rank", [4, 0])
def test_two_processes_measure_the_activations_that_one_measures(pair: Pool, untied: str, rank: int) -> None:
    for sharded, alone in pair.run("measure_activations", directory=untied, rank=rank):
        assert sharded == pytest.approx(alone, rel=0.05)


@pytest.mark.parametrize("family", ["gemma3_text", "gpt2", "mixtral"])
def test_two_processes_follow_one_on_models_of_other_families(pair: Pool, tmp_path: Path, family: str) -> None:
    """A tied head and two rotary embeddings; no rotary embedding; experts that the files have one by one."""
    directory = str(write_model(tmp_path / "model", family))

    found = pair.run("follow_one_process", directory=directory, rank=0, losses=["cross_entropy"], counts=[3])

    assert_close(found)


@pytest.mark.parametrize("precision", ["8bit", "4bit"])
def test_two_processes_follow_one_on_a_quantised_base(pair: Pool, untied: str, precision: str) -> None:
    options = {"rank": 4, "losses": ["cross_entropy"], "counts": [1, 3], "precision": precision}

    assert_close(pair.run("follow_one_process", directory=untied, **options))


@pytest.mark.parametrize("precision", ["8bit", "4bit"])
def test_each_process_holds_its_share_of_a_quantised_base(pair: Pool, untied: str, precision: str) -> None:
    answers = pair.run("hold_a_share_of_quantised_weights", directory=untied, precision=precision)

    assert sum(answer["held"] for answer in answers) == answers[0]["whole"]
    for answer in answers:
        assert answer["said"] == answer["held"] < 0.6 * answer["whole"]
        assert f"quantised to {precision}" in answer["refused"]


def test_activation_checkpointing_changes_no_bit_on_a_quantised_base(pair: Pool, untied: str) -> None:
    options = {"rank": 4, "modes": ["on", "on"], "precision": "4bit"}

    assert pair.run("recompute_activations", directory=untied, **options) == [True, True]
