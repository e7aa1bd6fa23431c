"""Credentials: messages to exchange a key for a token, and to describe a key."""

from __future__ import annotations

from pydantic import Field

from chockstone.wire.messages.schema import Response


class AuthTokenResponse(Response):
    """The client never verifies the token but reads ``exp``, and ``sub``, ``org_id`` and ``email`` for whoami.

    It must live for more than five minutes: clients renew it that long before it ends.
    """

    jwt: str = Field(repr=False)


class OrganizationDetails(Response):
    name: str


class UserDetails(Response):
    email: str


class KeyDetails(Response):
    org_details: OrganizationDetails
    user_details: UserDetails


class ApiKeyResponse(Response):
    key_id: int
    name: str
    note: str = ""
    details: KeyDetails
