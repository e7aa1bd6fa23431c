"""Stalls: how long a client waits for a journal that cannot be written."""

from __future__ import annotations

import asyncio
from typing import Final

from chockstone.engine.journal.journal import JournalError, JournalWriter

STALL_SECONDS: Final = 40.0  # clients time out after 45


class Stalled(Exception):
    """The request could not be written down in time. Answered with 503; a repeat of it gets the same id."""


async def wait_until_durable(
    durable: asyncio.Future[None], writer: JournalWriter, *, timeout_seconds: float = STALL_SECONDS
) -> None:
    """Returns when the record is durable. Raises Stalled when it is not in time; it stays in line to be written."""
    try:
        async with asyncio.timeout(timeout_seconds):
            await asyncio.shield(durable)  # a caller that goes away does not take the record with it
    except TimeoutError:
        reason = writer.trouble or "the disk is slow"
        raise Stalled(
            f"the request could not be written to the journal within {timeout_seconds:g} seconds: {reason}. "
            f"Send it again; it is taken as soon as there is a place for it."
        ) from None
    except JournalError as error:
        raise Stalled(f"the request was not taken: {error}. Send it again once the server is back.") from error
