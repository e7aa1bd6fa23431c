from __future__ import annotations

import pytest

from chockstone.checkpoints.format.layout import MIN_BLOCK_BYTES
from support.archives import write_archive
from support.tensors import random_bytes

BLOCKS = 20


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """An archive of a little more than twenty blocks, one tensor to a block."""
    tensors = {f"t{index:02d}": random_bytes(MIN_BLOCK_BYTES, seed=index) for index in range(BLOCKS)}
    return write_archive(tmp_path_factory.mktemp("large"), {"model": tensors}).read_bytes()
