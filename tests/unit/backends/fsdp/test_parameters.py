from __future__ import annotations

import pytest

from support.backends.fsdp.pool import Pool
from support.backends.saving import make_directory


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_directory(tmp_path_factory.mktemp("models") / "llama", "llama", tied=False))


def test_the_rows_of_all_processes_are_the_whole_model(pair: Pool, directory: str) -> None:
    for answer in pair.run("take_parameters_apart", directory=directory):
        assert answer["named"] == 0.0
        assert answer["whole"] == 0.0
        assert answer["parts"] == 0.0
        assert answer["norm"] == pytest.approx(answer["norm_of_one"], rel=1e-6)
