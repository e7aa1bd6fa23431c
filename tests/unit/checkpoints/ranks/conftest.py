from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.rank_pool import RankPool, open_pool


@pytest.fixture(scope="session")
def ranks() -> Iterator[RankPool]:
    yield from open_pool()
