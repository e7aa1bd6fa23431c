from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from support.rank_pool import RankPool


@pytest.fixture(scope="session")
def ranks() -> Iterator[RankPool]:
    from support.rank_pool import open_pool  # late: a plain install has no torch

    yield from open_pool()
