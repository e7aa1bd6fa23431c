from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.killed_training import ScriptForks


@pytest.fixture(scope="package")
def scripts() -> Iterator[ScriptForks]:
    """Processes that have imported Lightning."""
    with ScriptForks(
        "torch",
        "lightning.pytorch",
        "lightning.pytorch.strategies",
        "torch._dynamo",
        "chockstone.integrations.lightning",
    ) as forks:
        yield forks
