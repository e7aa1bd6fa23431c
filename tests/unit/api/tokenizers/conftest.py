from __future__ import annotations

from pathlib import Path

import pytest

from support.tokenizers import write_tokenizer


@pytest.fixture
def model(tmp_path: Path) -> Path:
    directory = tmp_path / "tiny-llama"
    directory.mkdir()
    return write_tokenizer(directory)
