from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from chockstone.sampling.vllm import server
from support.vllm.stub import Stub, running


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is noticed in seconds is noticed at once."""
    monkeypatch.setattr(server, "_HEALTH_SECONDS", 0.05)
    monkeypatch.setattr(server, "_FIRST_PAUSE_SECONDS", 0.02)
    monkeypatch.delenv("VLLM_API_KEY", raising=False)


@pytest.fixture
async def stub() -> AsyncIterator[Stub]:
    made = Stub()
    async with running(made):
        yield made


@pytest.fixture
async def other() -> AsyncIterator[Stub]:
    made = Stub()
    async with running(made):
        yield made
