from __future__ import annotations

from pathlib import Path

import pytest

from support.backends.fsdp.pool import Pool
from support.backends.saving import make_directory, make_mixture


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_directory(tmp_path_factory.mktemp("models") / "llama", "llama", tied=False))


def test_a_model_that_one_process_cannot_read_is_loaded_by_none(pair: Pool, directory: str) -> None:
    answers = pair.run("load_where_one_cannot", directory=directory)

    assert answers[0] == answers[1]
    assert answers[0].startswith("ServerFailure: model 'tiny'") and "config.json" in answers[0]


def test_other_families_are_refused_with_what_to_do(pair: Pool, tmp_path: Path) -> None:
    answers = pair.run("load", directory=str(make_mixture(tmp_path)))

    assert answers[0] == answers[1]
    assert "Serve it with one worker" in answers[0]
