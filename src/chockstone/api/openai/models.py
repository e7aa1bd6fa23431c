"""Models (OpenAI): the names by which requests choose a model."""

from __future__ import annotations

from typing import Any

from chockstone.api.chat.chat_service import ChatDep
from chockstone.api.chat.served_model import ListedModel
from chockstone.api.routes import Routes
from chockstone.api.users import CallerDep

routes = Routes(tags=["OpenAI"])
_SERVER = "chockstone"


@routes.get("/models", summary="List models (OpenAI)")
async def list_models(chat: ChatDep, caller: CallerDep) -> dict[str, Any]:
    """Base models, aliases, and the newest checkpoints that the caller may sample from."""
    found = await chat.list_models(caller)
    return {"object": "list", "data": [_entry(model) for model in found]}


@routes.get("/models/{model:path}", summary="Show a model (OpenAI)")
async def get_model(model: str, chat: ChatDep, caller: CallerDep) -> dict[str, Any]:
    """A base model, an alias or a checkpoint, by its name."""
    found = await chat.find_model(caller, model)
    target = None if found.alias is None else found.alias.target
    created_at = None if found.alias is None else found.alias.changed_at
    entry = _entry(ListedModel(model, created_at, None if found.path is None else caller.user_id, target))
    return {**entry, "root": found.path or found.base_model, "max_model_len": found.max_context}


def _entry(model: ListedModel) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "id": model.name,
        "object": "model",
        "created": 0 if model.created_at is None else int(model.created_at.timestamp()),
        "owned_by": model.owner or _SERVER,
    }
    return entry if model.target is None else {**entry, "root": model.target}
