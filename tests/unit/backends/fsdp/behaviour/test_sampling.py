"""Several processes sample what one does."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.backends.fsdp.pool import Pool
from support.backends.saving import make_directory


@pytest.mark.parametrize("rank", [None, 4, 0], ids=["base", "lora", "full"])
def test_two_processes_sample_what_one_does(pair: Pool, tmp_path: Path, rank: int | None) -> None:
    directory = str(make_directory(tmp_path, "qwen3", tied=True))

    gaps = pair.run("sample_as_one_does", directory=directory, rank=rank)

    assert max(gaps) <= 1e-4
