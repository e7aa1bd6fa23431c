"""Served models: what a client means by the name of a model: a base model, a checkpoint, or an alias of either."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from chockstone.api.context import Context
from chockstone.api.users import Caller
from chockstone.catalog import SERVER_WIDE, AliasRow, CheckpointRow, RowMissing
from chockstone.catalog.searches.checkpoint_search import CheckpointQuery
from chockstone.engine.samples.sampling import SamplerSource
from chockstone.wire.model_names import ModelName
from chockstone.wire.paths import SCHEME, Kind

_KINDS: Final = (Kind.SAMPLER_WEIGHTS, Kind.WEIGHTS)
_LONGEST_NAME: Final = 1000
_LISTED: Final = 200  # checkpoints, of the caller and published ones each
_AUDITED: Final = 10_000  # reads that are not recorded again


class ModelMissing(RowMissing):
    """There is no such model, or the caller may not sample from it."""


@dataclass(frozen=True, slots=True)
class NamedModel:
    name: str  # as the client wrote it
    source: SamplerSource
    path: str | None  # of the checkpoint; None: the base model itself
    alias: AliasRow | None
    directory: Path  # with the tokenizer
    max_context: int | None

    @property
    def base_model(self) -> str:
        return self.source.base_model


@dataclass(frozen=True, slots=True)
class ListedModel:
    name: str
    created_at: datetime | None  # None: a base model
    owner: str | None  # None: the server
    target: str | None = None  # of an alias


class ServedModels:
    def __init__(self, context: Context) -> None:
        self._context = context
        self._audited: OrderedDict[tuple[str, str], None] = OrderedDict()  # users, and the archives that they read

    async def find(self, caller: Caller, name: str) -> NamedModel:
        """Aliases are resolved now, so the next request gets the new target of one that was switched.

        Raises ModelMissing or BadRequest for what the caller may not sample from.
        """
        if len(name) > _LONGEST_NAME:
            raise ModelMissing(f"there is no model {name[:100]!r}…: a name has at most {_LONGEST_NAME} characters")
        try:
            return await self._find(caller, name)
        except RowMissing as error:
            raise ModelMissing(str(error), code=error.code) from None

    async def list(self, caller: Caller) -> list[ListedModel]:
        """Base models, then aliases, then the newest checkpoints that the caller may sample from."""
        context = self._context
        listed = [ListedModel(name, None, None) for name in sorted(context.models)]
        rows = await context.catalog.aliases.list(caller.user_id, SERVER_WIDE)
        by_name = {
            row.name: row for row in sorted(rows, key=lambda row: row.owner != SERVER_WIDE)
        }  # own ones hide others
        aliases = by_name.values()
        listed += [ListedModel(alias.name, alias.changed_at, alias.owner or None, alias.target) for alias in aliases]
        for public in (None, True):
            query = CheckpointQuery(
                owner=caller.user_id if public is None else None,
                kinds=("sampler_weights", "weights"),
                state="ready",
                public=public,
                base_models=sorted(context.models),
                limit=_LISTED,
            )
            found = (await context.catalog.checkpoint_search.find(query, now=context.now())).rows
            others = [row for row in found if public is None or row.owner != caller.user_id]
            listed += [ListedModel(row.path, row.created_at, row.owner) for row in others]
        return listed

    async def _find(self, caller: Caller, name: str) -> NamedModel:
        alias = await self._alias(caller, name)
        target = name if alias is None else alias.target or ""
        if not target.startswith(SCHEME):
            description = self._context.model(target)
            source = SamplerSource("", caller.user_id, target, None)
            limits = (description.max_context, ModelName.parse(target).max_context)
            return NamedModel(name, source, None, alias, description.directory, _smallest(*limits))
        row = (await self._context.checkpoint(target, caller, kinds=_KINDS)).row
        description = self._context.model(row.base_model)
        self._audit(row, caller)
        source = SamplerSource("", caller.user_id, row.base_model, row.archive, row.seal)
        limits = (description.max_context, ModelName.parse(row.base_model).max_context)
        return NamedModel(name, source, row.path, alias, description.directory, _smallest(*limits))

    async def _alias(self, caller: Caller, name: str) -> AliasRow | None:
        if name.startswith(SCHEME) or ModelName.parse(name).base in self._context.models:
            return None
        found = None
        if "\0" not in name:
            found = await self._context.catalog.aliases.resolve(name, caller.user_id)
        if found is None:
            raise RowMissing(
                f"there is no model {name[:300]!r}: name one of {', '.join(sorted(self._context.models))}, "
                f"a checkpoint ({SCHEME}…) or an alias (`chockstone alias ls`)"
            )
        return found

    def _audit(self, row: CheckpointRow, caller: Caller) -> None:
        """Once per user and archive: an alias may get many requests a second."""
        key = (caller.user_id, row.archive)
        if key not in self._audited:
            self._context.audit_read(row, caller, purpose="sample")
            self._audited[key] = None
            if len(self._audited) > _AUDITED:
                self._audited.popitem(last=False)


def _smallest(*limits: int | None) -> int | None:
    return min((limit for limit in limits if limit is not None), default=None)
