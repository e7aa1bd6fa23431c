"""API keys: messages to list, create and revoke them. A key itself is in one answer only."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from chockstone.wire.messages.schema import Request, Response, Timestamp


class KeyEntry(Response):
    key_id: int | None = None  # absent: the key is in the settings of the server, and is revoked there
    user_id: str
    source: Literal["catalog", "settings"]
    is_admin: bool  # the user
    hint: str | None = None  # the last characters of the key
    note: str | None = None
    created_at: Timestamp | None = None
    revoked_at: Timestamp | None = None  # absent: the key is valid


class KeysResponse(Response):
    keys: list[KeyEntry]  # oldest first, revoked ones too
    is_open: bool  # the server has no keys and accepts any; the first key closes it


class CreateKeyRequest(Request):
    user_id: Annotated[str, Field(min_length=1, max_length=255)]
    note: Annotated[str, Field(max_length=500)] = ""


class CreateKeyResponse(Response):
    """The only answer that has the key."""

    key_id: int
    user_id: str
    key: str = Field(repr=False)
    hint: str
    note: str
    created_at: Timestamp
    closed_server: bool  # it was the first key: from now on every request needs a valid key
    detail: str  # what the new key means for this server


class RevokeKeyResponse(Response):
    key_id: int
    user_id: str
    revoked_at: Timestamp
