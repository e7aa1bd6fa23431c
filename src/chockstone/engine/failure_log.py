"""The failure log: a warning for each request that failed, within bounds.

Of each caller, route and status, the first failures of an interval are logged one by one, each with its reason. Further
ones are counted and logged together when the interval ends. So a client that fails again and again, or an attacker,
cannot fill the log. Callers without a valid key have a budget of their own, so they cannot hide the failures of users.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from chockstone.telemetry.origin import working_for

log = logging.getLogger(__name__)
_REFUSED: Final = "request failed route=%r status=%d owner=%s client=%s request=%s reason=%r"
_FAILED_LATER: Final = "request failed route=%r category=%s owner=%s client=%s request=%s reason=%r"
_MORE_REFUSED: Final = "requests failed route=%r status=%d owner=%s client=%s more=%d last_reason=%r"
_MORE_FAILED_LATER: Final = "requests failed route=%r category=%s owner=%s client=%s more=%d last_reason=%r"
INTERVAL_SECONDS: Final = 60.0
IN_FULL: Final = 5  # of one kind in one interval
KINDS: Final = 50  # of all users in one interval; further ones are counted as one
KINDS_WITHOUT_KEY: Final = 20  # of all callers without a valid key
KINDS_PER_CALLER: Final = 10
_LONGEST_TEXT: Final = 500


@dataclass(frozen=True, slots=True)
class RequestFailure:
    route: str  # such as ``POST /save_weights``, or the name of an operation that was accepted and failed later
    status: int | str  # of HTTP; text: the category of the failure of an operation
    reason: str = field(compare=False)
    owner: str = "-"  # "-": a caller without a valid key
    client: str = "-"  # address
    request_id: str = field(default="-", compare=False)

    @property
    def has_key(self) -> bool:
        return self.owner != "-"

    @property
    def caller(self) -> tuple[str, str]:
        return (self.owner, "") if self.has_key else (self.owner, self.client)


class FailureLog:
    def __init__(
        self, *, interval_seconds: float = INTERVAL_SECONDS, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._interval = interval_seconds
        self._monotonic = monotonic
        self._until = 0.0
        self._counts: dict[RequestFailure, int] = {}  # in this interval, by kind; has the last failure of each kind
        self._others = 0  # failures of further kinds

    def record(self, failed: RequestFailure) -> None:
        self.report_due()
        if failed not in self._counts and not self._has_room(failed):
            self._others += 1
            return
        count = self._counts.pop(failed, 0) + 1
        self._counts[failed] = count  # with the newest reason
        if count <= IN_FULL:
            log.warning(
                _REFUSED if isinstance(failed.status, int) else _FAILED_LATER,
                *_facts(failed),
                _one_line(failed.request_id),
                _one_line(failed.reason),
            )

    def _has_room(self, failed: RequestFailure) -> bool:
        alike = [kind for kind in self._counts if kind.has_key == failed.has_key]
        limit = KINDS if failed.has_key else KINDS_WITHOUT_KEY
        return len(alike) < limit and sum(kind.caller == failed.caller for kind in alike) < KINDS_PER_CALLER

    def report_due(self) -> None:
        """Log what was only counted, if the interval is over."""
        now = self._monotonic()
        if now < self._until:
            return
        self._until = now + self._interval
        counts, self._counts = self._counts, {}
        others, self._others = self._others, 0
        with working_for(None):  # not for the request that happens to be handled now
            _report(counts, others)

    async def keep(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(self._interval)
            self.report_due()


def _report(counts: Mapping[RequestFailure, int], others: int) -> None:
    for failed, count in counts.items():
        if count > IN_FULL:
            log.warning(
                _MORE_REFUSED if isinstance(failed.status, int) else _MORE_FAILED_LATER,
                *_facts(failed),
                count - IN_FULL,
                _one_line(failed.reason),
            )
    if others:
        log.warning("requests failed of further kinds count=%d", others)


def _facts(failed: RequestFailure) -> tuple[str, int | str, str, str]:
    """A number stays a number, for logs in JSON."""
    status = failed.status if isinstance(failed.status, int) else _one_line(failed.status)
    return _one_line(failed.route), status, _one_line(failed.owner), _one_line(failed.client)


def _one_line(text: str) -> str:
    """A reason may quote what a client sent: no line breaks or control characters reach the log."""
    short = text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}…"
    return "".join(letter if letter.isprintable() else " " for letter in short)
