"""The servers of ``tests/sdk``, and what no request may ever do to them."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from sdk.conftest import connect, live, start_server
from support.live import LiveServer

__all__ = ["connect", "live", "start_server"]


@pytest.fixture
def http(live: LiveServer) -> Iterator[httpx.Client]:
    """To the shared server, whose log must hold no traceback afterwards: whatever was asked, it was foreseen."""
    offset = len(live.log())
    with live.http() as client:
        yield client
    said = live.log()[offset:]
    assert "Traceback" not in said, said
    assert " ERROR " not in said, said
