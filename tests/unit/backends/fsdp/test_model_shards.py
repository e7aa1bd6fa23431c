from __future__ import annotations

import pytest

from support.backends.fsdp.pool import Pool
from support.backends.saving import make_directory


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_directory(tmp_path_factory.mktemp("models") / "llama", "llama", tied=False))


def test_between_passes_each_process_holds_its_share(pair: Pool, directory: str) -> None:
    for answer in pair.run("hold_no_more_than_a_share", directory=directory):
        assert answer["held"] <= 0.52 * answer["whole"]  # rows that cannot be halved are on one side
