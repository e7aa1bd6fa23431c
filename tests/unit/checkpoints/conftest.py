from __future__ import annotations

import pytest

from chockstone.checkpoints.saving import writer
from support.checkpoints.file_archives import MIB


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of one block, so that files of a few megabytes are many of them."""
    monkeypatch.setattr(writer, "CHUNK_BYTES", MIB)
