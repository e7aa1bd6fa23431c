from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.api.download_server import DownloadServer


@pytest.fixture
def server(tmp_path: Path) -> Iterator[DownloadServer]:
    with DownloadServer(tmp_path) as server:
        yield server
