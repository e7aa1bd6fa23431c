"""Retry with backoff: how long a call waits for a database that does not answer, as during its restart.

A call retries for some seconds by itself. Work that must not fail because of a restart, and that may be repeated,
retries without end within ``waiting_for_catalog``.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass, field
from typing import Final

from chockstone.catalog.errors import CatalogAway

_RETRY_SECONDS: Final = 5.0  # less than any client waits for an answer
_LONGEST_PAUSE_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class _Waiting:
    is_over: Callable[[], bool]
    on_wait: Callable[[str | None], None]


_WAITING: Final[ContextVar[_Waiting | None]] = ContextVar("waiting", default=None)


@contextmanager
def waiting_for_catalog(
    *, is_over: Callable[[], bool], on_wait: Callable[[str | None], None] = lambda _: None
) -> Iterator[None]:
    """Each call to the catalog in this block retries until its database answers, or ``is_over`` returns true.

    Each call must be repeatable: a commit whose answer was lost is run again. ``on_wait`` is called with the reason
    when a call waits, and with None when it ends.
    """
    token = _WAITING.set(_Waiting(is_over, on_wait))
    try:
        yield
    finally:
        _WAITING.reset(token)


def context_that_waits_for_catalog(*, is_over: Callable[[], bool]) -> Context:
    """For a task that runs as a whole as if within ``waiting_for_catalog``."""
    context = copy_context()
    context.run(_WAITING.set, _Waiting(is_over, lambda _: None))
    return context


@dataclass(slots=True)
class CatalogRetry:
    """The retries of one call."""

    _waiting: _Waiting | None = field(default_factory=_WAITING.get)
    _began: float | None = None
    _pause: float = 0.0  # the first retry is immediate: a pooled connection may have been cut long ago

    async def wait(self, error: CatalogAway) -> None:
        """Sleep until the next attempt. Raises the error when there is none."""
        now = time.monotonic()
        if self._began is None:
            self._began = now
        if self._waiting is None:
            if error.may_be_done or now - self._began > _RETRY_SECONDS:
                raise error
        elif self._waiting.is_over():
            raise error
        elif self._pause >= _LONGEST_PAUSE_SECONDS:
            self._waiting.on_wait(str(error))
        await asyncio.sleep(self._pause)
        self._pause = min(_LONGEST_PAUSE_SECONDS, self._pause * 2 or 0.05)

    def end(self) -> None:
        """The call succeeded or failed."""
        if self._began is not None and self._waiting is not None:
            self._waiting.on_wait(None)
