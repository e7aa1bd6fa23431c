from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.backends.fsdp.pool import Pool


@pytest.fixture(scope="package")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    """Two processes, joined by gloo."""
    pool = Pool(2, tmp_path_factory.mktemp("pair"))
    yield pool
    pool.close()


@pytest.fixture(scope="package")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    """Three processes."""
    pool = Pool(3, tmp_path_factory.mktemp("three"))
    yield pool
    pool.close()
