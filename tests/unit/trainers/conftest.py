from __future__ import annotations

import pytest

from support.trainers.fakes import FakeServer, Ledger


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> FakeServer:
    """What trainers of a test connect to."""
    server = FakeServer()
    server.install(monkeypatch)
    return server


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()
