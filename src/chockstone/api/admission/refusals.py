"""Refused keys: reports unknown credentials to the log and the audit, within bounds.

The first refusal of a key from an address is reported at once; further ones are counted and reported together when
the interval ends. Keys are never reported, only the start of their SHA-256 digest.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from chockstone.telemetry.origin import working_for

log = logging.getLogger(__name__)
INTERVAL_SECONDS: Final = 60.0
_REPORTED: Final = 20  # pairs of address and key in one interval; the others are reported as one
_OTHERS: Final = "(others)"


@dataclass(frozen=True, slots=True)
class RefusedKey:
    source: str  # address of the client
    key_digest: str  # first 8 hexadecimal digits of the key's SHA-256
    count: int  # refusals since the last report of the same


class RefusedKeys:
    """``report`` is called for each line that is logged, to add it to the audit."""

    def __init__(
        self,
        report: Callable[[RefusedKey], None] = lambda _: None,
        *,
        interval_seconds: float = INTERVAL_SECONDS,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._report = report
        self._interval = interval_seconds
        self._monotonic = monotonic
        self._until = 0.0
        self._counts: dict[tuple[str, str], int] = {}  # refusals in this interval that were not reported yet

    def record(self, credential: str, *, source: str) -> None:
        self.report_due()
        digest = hashlib.sha256(credential.encode(errors="replace")).hexdigest()[:8]
        pair = (ascii(source[:64])[1:-1], digest)  # a proxy may forward any text as the address
        if pair in self._counts:
            self._counts[pair] += 1
        elif len(self._counts) < _REPORTED:
            self._counts[pair] = 0
            self._emit(RefusedKey(*pair, count=1))
        else:
            others = (_OTHERS, _OTHERS)
            self._counts[others] = self._counts.get(others, 0) + 1

    async def keep_reporting(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(self._interval)
            self.report_due()

    def report_due(self) -> None:
        """Report what was counted, if the interval is over."""
        now = self._monotonic()
        if now < self._until:
            return
        self._until = now + self._interval
        counts = {pair: count for pair, count in self._counts.items() if count}
        self._counts = dict.fromkeys(counts, 0)  # these are reported again when the next interval ends
        with working_for(None):  # not for the request that happens to be handled now
            for (source, digest), count in counts.items():
                self._emit(RefusedKey(source, digest, count))

    def _emit(self, refused: RefusedKey) -> None:
        log.warning("key refused client=%s key_sha256=%s count=%d", refused.source, refused.key_digest, refused.count)
        self._report(refused)
