"""PostgreSQL: makes connections, and tells temporary failures from lasting ones by their SQLSTATE.

URLs are libpq's, and asyncpg reads them: TLS, several hosts, sockets, ``PGPASSWORD`` and ``~/.pgpass``. No message
here repeats a password.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from chockstone.catalog.errors import CatalogAway, CatalogUnavailable
from chockstone.extras import ExtraMissing, require
from chockstone.wire.redaction import redact_url

Connect = Callable[[], Awaitable[Any]]  # Any: asyncpg has no types
CONNECTIONS: Final = 8  # kept open by one process, besides the one that holds the engine's lock
_CONNECT_SECONDS: Final = 10.0
_STATEMENT_SECONDS: Final = 60.0  # else a network that drops packets would block a call for hours
READ_ONLY: Final = "25006"
# SQLSTATE classes of temporary failures: connections, transaction conflicts, resources, locks, shutdown, disks.
_TEMPORARY: Final = ("08", "40", "53", "55", "57", "58", READ_ONLY)
_ADVICE: Final = {
    "28P01": "check the user and the password",
    "28000": "let this user in from this machine, in pg_hba.conf",
    "3D000": "make the database first: CREATE DATABASE name OWNER role",
    "3F000": "make the schema of the URL's search_path first: CREATE SCHEMA name AUTHORIZATION role",
    "42501": "make the user of the URL the owner of the database: ALTER DATABASE name OWNER TO role",
    "53300": f"one of our processes takes up to {CONNECTIONS + 1}; raise max_connections, or let fewer others in",
    READ_ONLY: "it may be a standby, or was set so; name the primary, or several hosts and "
    "target_session_attrs=read-write, in the URL",
}


def connector(
    url: str, *, is_hurried: bool = True, is_read_only: bool = False, settings: Mapping[str, str] | None = None
) -> Connect:
    """A function that makes a connection. It raises CatalogAway for a temporary failure, else CatalogUnavailable.

    ``settings`` are session settings; the URL's own take precedence. ``is_hurried`` limits statements to a minute;
    ``is_read_only`` refuses writes.
    """
    try:
        require("postgres", f"the catalog {redact_url(url)!r}")
    except ExtraMissing as error:
        raise CatalogUnavailable(str(error)) from error
    import asyncpg

    dsn = "postgresql://" + url.partition("://")[2]
    own = {"application_name": "chockstone", **(settings or {})}

    async def connect() -> Any:  # Any: as above
        try:
            given = parse_qs(urlsplit(dsn).query)
            connection = await asyncpg.connect(
                dsn,
                timeout=_CONNECT_SECONDS,
                command_timeout=_STATEMENT_SECONDS if is_hurried else None,
                server_settings={name: value for name, value in own.items() if name not in given},
            )
            if is_read_only:  # after connecting: the URL may ask for a session that can write
                await connection.execute("SET default_transaction_read_only = on")
            return connection
        except (
            asyncpg.PostgresError,
            asyncpg.InterfaceError,
            asyncpg.exceptions.InternalClientError,
            OSError,
        ) as error:
            raise refusal(
                error, url, is_cut=not isinstance(error, ValueError)
            ) from error  # InterfaceError about the URL is a ValueError
        except ValueError:  # its text may contain a part of the password
            raise CatalogUnavailable(
                "the catalog's URL cannot be read: use postgresql://USER:PASSWORD@HOST:PORT/DATABASE, with "
                "every @ : / ? # and % of the password written as %40 %3A %2F %3F %23 and %25"
            ) from None

    return connect


def refusal(error: BaseException, url: str, *, is_cut: bool) -> CatalogUnavailable:
    """The catalog's error for a driver's error. ``is_cut``: the connection ended, or there was none."""
    state = state_of(error)
    reason = str(error) or type(error).__name__  # a timeout has no text
    is_silent = is_cut and not state
    other = "look for a stopped database server, or a network that is cut" if is_silent else "its log may say more"
    message = f"the catalog {redact_url(url)!r} cannot be used: {reason}; {_ADVICE.get(state, other)}"
    return CatalogAway(message) if is_silent or state.startswith(_TEMPORARY) else CatalogUnavailable(message)


def state_of(error: BaseException | None) -> str:
    """The SQLSTATE, or "" where the server sent none."""
    return getattr(error, "sqlstate", None) or ""
