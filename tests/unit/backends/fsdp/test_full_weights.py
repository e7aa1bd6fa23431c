from __future__ import annotations

import pytest

from support.backends.fsdp.pool import Pool
from support.backends.saving import make_directory


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_directory(tmp_path_factory.mktemp("models") / "qwen3", "qwen3", tied=True))


def test_the_base_model_is_unchanged_after_training_on_it(pair: Pool, directory: str) -> None:
    for answer in pair.run("apply_and_take_back", directory=directory):
        assert answer["inside"] == 1.0
        assert answer["after"] == 0.0
        assert not answer["is_trainable"]


def test_a_snapshot_keeps_its_weights_while_the_run_trains(pair: Pool, directory: str) -> None:
    for answer in pair.run("keep_a_snapshot", directory=directory):
        assert answer["same"] == 0.0
        assert answer["trained"] > 0.0
