from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from chockstone.api.chat.chat_service import ChatService
from chockstone.api.context import Context
from chockstone.api.users import Caller
from support.api.users import MODEL
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
async def chat(served: Served, context: Context) -> AsyncIterator[ChatService]:
    chat: ChatService = served.app.state.chat
    yield chat
    served.backend.let_everything_go()
    chat.tokenizers.close()


@pytest.fixture
def caller() -> Caller:
    return Caller("ann")
