from __future__ import annotations

import pytest
import torch

from chockstone.checkpoints.format.layout import MIN_BLOCK_BYTES
from support.archives import write_archive

BLOCKS = 20


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """An archive of a little more than twenty blocks, one tensor to a block."""
    generator = torch.Generator().manual_seed(1)
    tensors = {
        f"t{index:02d}": torch.randint(256, (MIN_BLOCK_BYTES,), dtype=torch.uint8, generator=generator)
        for index in range(BLOCKS)
    }
    return write_archive(tmp_path_factory.mktemp("large"), {"model": tensors}).read_bytes()
