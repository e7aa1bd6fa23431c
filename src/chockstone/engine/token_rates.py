"""Token rates: how many tokens were trained and sampled in the last minute, of each user.

It holds 60 buckets of a second each, whatever runs. Tokens of a replay are not counted: they were trained before.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from typing import Final, Literal

TokenUse = Literal["trained", "sampled"]
WINDOW_SECONDS: Final = 60
_USERS: Final = 1000  # in one second; tokens of further users count as those of OTHERS
OTHERS: Final = ""


class TokenRates:
    def __init__(self, *, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._started = monotonic()
        self._buckets: deque[tuple[int, Counter[tuple[TokenUse, str]]]] = deque()  # by second, oldest first

    def count(self, use: TokenUse, owner: str, tokens: int) -> None:
        second = int(self._monotonic())
        self._drop_old()
        if not self._buckets or self._buckets[-1][0] != second:
            self._buckets.append((second, Counter()))
        counts = self._buckets[-1][1]
        key = (use, owner) if (use, owner) in counts or len(counts) < _USERS else (use, OTHERS)
        counts[key] += tokens

    def per_second(self, use: TokenUse, owner: str | None = None) -> float:
        """Mean of the last minute, or of the time since the start; of all users when ``owner`` is None."""
        self._drop_old()
        seconds = min(WINDOW_SECONDS, max(1.0, self._monotonic() - self._started))
        counted = (item for _, counts in self._buckets for item in counts.items())
        return sum(tokens for key, tokens in counted if key[0] == use and owner in (None, key[1])) / seconds

    def _drop_old(self) -> None:
        horizon = int(self._monotonic()) - WINDOW_SECONDS
        while self._buckets and self._buckets[0][0] <= horizon:
            self._buckets.popleft()
