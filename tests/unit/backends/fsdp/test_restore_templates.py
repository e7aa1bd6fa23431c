from __future__ import annotations

from pathlib import Path

import pytest

from support.backends.fsdp.pool import Pool
from support.backends.saving import make_directory


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_directory(tmp_path_factory.mktemp("models") / "qwen3", "qwen3", tied=True))


def test_each_process_reads_its_own_part_of_a_model(pair: Pool, directory: str, tmp_path: Path) -> None:
    pair.run("save_a_run", directory=directory, store=str(tmp_path), rank=0, kinds=["recovery"])

    answers = pair.run("room_made", directory=directory, store=str(tmp_path), archive="recovery")

    assert sum(answer["mine"] for answer in answers) == answers[0]["whole"]
    assert all(answer["mine"] <= 0.52 * answer["whole"] for answer in answers)
