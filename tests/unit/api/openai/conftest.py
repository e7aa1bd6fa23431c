from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from support.api.users import KEYS, MODEL
from support.chat import HERMES, make_chat_model
from support.served import Served


@pytest.fixture
def models(tmp_path: Path) -> dict[str, Path]:
    """``tiny`` has a chat template without tools, ``helper`` one with them."""
    return {
        MODEL: make_chat_model(tmp_path / "model"),
        "helper": make_chat_model(tmp_path / "helper", template=HERMES),
    }


@pytest.fixture
async def http(served: Served) -> AsyncIterator[httpx.AsyncClient]:
    """Of the user ``ann``; paths are relative to ``/v1/``."""
    transport = httpx.ASGITransport(served.app, raise_app_exceptions=False)
    headers = {"Authorization": f"Bearer {KEYS['ann']}"}
    async with httpx.AsyncClient(
        transport=transport, base_url="http://localhost/v1/", headers=headers, timeout=60
    ) as http:
        yield http
    served.backend.let_everything_go()
    served.app.state.chat.tokenizers.close()
