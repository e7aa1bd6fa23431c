"""Aliases: messages to list, set, undo and remove names of checkpoints and base models."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from chockstone.wire.messages.schema import Request, Response, Timestamp


class SetAliasRequest(Request):
    target: Annotated[str, Field(min_length=1, max_length=1000)]  # a tinker:// path or a base model
    server_wide: bool = False  # for all users; for admins
    store: bool | None = None  # store conversations with the target; absent: as the alias has it


class UndoAliasRequest(Request):
    server_wide: bool = False


class AliasEntry(Response):
    name: str
    server_wide: bool
    target: str | None = None  # absent: the change removed the alias
    store: bool  # conversations with the target are stored, unless a request says otherwise
    revision: int  # 1, 2, 3 and so on, one for each change
    action: Literal["set", "undo", "remove"]
    changed_at: Timestamp
    changed_by: str
    problem: str | None = None  # why the target cannot be used now


class AliasesResponse(Response):
    aliases: list[AliasEntry]  # by name


class AliasHistoryResponse(Response):
    changes: list[AliasEntry]  # newest first
