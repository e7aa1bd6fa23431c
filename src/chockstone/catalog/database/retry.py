"""Patience: how long a call waits for a database that is away, as one that is being restarted.

A call waits for moments by itself, so that a restart is hardly noticed. Work that must not fail for
such a reason, and may be done twice, waits for as long as it takes within ``waiting_for_catalog``.
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

_MOMENTS_SECONDS: Final = 5.0  # less than any client waits for an answer
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
    """Every call to the catalog in this block waits until its database is back, or ``is_over`` says so.

    It must be fit to be done twice: a commit whose answer was lost is repeated. ``on_wait`` is told why
    it waits, and None when it goes on.
    """
    token = _WAITING.set(_Waiting(is_over, on_wait))
    try:
        yield
    finally:
        _WAITING.reset(token)


def context_that_waits_for_catalog(*, is_over: Callable[[], bool]) -> Context:
    """For a task that is such a block from its beginning to its end."""
    context = copy_context()
    context.run(_WAITING.set, _Waiting(is_over, lambda _: None))
    return context


@dataclass(slots=True)
class CatalogRetry:
    """Of one call."""

    _waiting: _Waiting | None = field(default_factory=_WAITING.get)
    _began: float | None = None
    _pause: float = 0.0  # the first time at once: of an old connection only the next call hears that it was cut

    async def wait(self, error: CatalogAway) -> None:
        """Until it is time to try again. Raises the error when it is not."""
        now = time.monotonic()
        if self._began is None:
            self._began = now
        if self._waiting is None:
            if error.may_be_done or now - self._began > _MOMENTS_SECONDS:
                raise error
        elif self._waiting.is_over():
            raise error
        elif self._pause >= _LONGEST_PAUSE_SECONDS:
            self._waiting.on_wait(str(error))
        await asyncio.sleep(self._pause)
        self._pause = min(_LONGEST_PAUSE_SECONDS, self._pause * 2 or 0.05)

    def end(self) -> None:
        """It goes on, or has given up."""
        if self._began is not None and self._waiting is not None:
            self._waiting.on_wait(None)
