"""Models (Anthropic): the names that requests may have as their ``model``, in pages."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Final

from fastapi import Query

from chockstone.api.chat.chat_service import ChatDep
from chockstone.api.chat.served_model import ListedModel
from chockstone.api.routes import Routes
from chockstone.api.users import CallerDep
from chockstone.wire.failures import BadParameter

routes = Routes(tags=["Anthropic"])
_UNKNOWN: Final = datetime(1970, 1, 1, tzinfo=UTC)  # as Anthropic shows a date that is not known


@routes.get("/models", summary="List models (Anthropic)")
async def list_models(
    chat: ChatDep,
    caller: CallerDep,
    limit: Annotated[int, Query(ge=1, le=1000)] = 20,
    after_id: str | None = None,
    before_id: str | None = None,
) -> dict[str, Any]:  # Any: plain JSON
    """Base models, aliases, and the newest checkpoints that the caller may sample from."""
    return page_of(await chat.list_models(caller), limit=limit, after=after_id, before=before_id)


@routes.get("/models/{model_id:path}", summary="Show a model (Anthropic)")
async def get_model(model_id: str, chat: ChatDep, caller: CallerDep) -> dict[str, Any]:  # Any: plain JSON
    """A base model, an alias or a checkpoint, by its name."""
    found = await chat.find_model(caller, model_id)
    alias = found.alias
    target, changed_at = (None, None) if alias is None else (alias.target, alias.changed_at)
    return model_info(ListedModel(model_id, changed_at, None, target), max_context=found.max_context)


def model_info(model: ListedModel, *, max_context: int | None = None) -> dict[str, Any]:  # Any: plain JSON
    created = (model.created_at or _UNKNOWN).astimezone(UTC)
    return {
        "type": "model",
        "id": model.name,
        "display_name": model.name if model.target is None else f"{model.name} ({model.target})",
        "created_at": created.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "lifecycle": "active",
        "max_input_tokens": max_context,
        "max_tokens": max_context,
    }


def page_of(
    models: Sequence[ListedModel], *, limit: int, after: str | None, before: str | None
) -> dict[str, Any]:  # Any: plain JSON
    """Raises BadParameter for a cursor that names no model."""
    names = [model.name for model in models]
    begin, end = 0, len(names)
    if after is not None:
        begin = _place(names, after, "after_id") + 1
    if before is not None:
        end = _place(names, before, "before_id")
    found = models[begin:end]
    is_backwards = before is not None and after is None
    page = found[-limit:] if is_backwards else found[:limit]
    return {
        "data": [model_info(model) for model in page],
        "has_more": len(found) > len(page),
        "first_id": page[0].name if page else None,
        "last_id": page[-1].name if page else None,
    }


def _place(names: Sequence[str], name: str, param: str) -> int:
    if name not in names:
        raise BadParameter(f"{param} is {name[:300]!r}, which is no model of this list", param=param)
    return names.index(name)
