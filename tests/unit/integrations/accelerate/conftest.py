from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.killed_training import ScriptForks


@pytest.fixture(scope="package")
def scripts() -> Iterator[ScriptForks]:
    """Processes that have imported Accelerate."""
    with ScriptForks("torch", "accelerate", "torch._dynamo", "chockstone.integrations.accelerate") as forks:
        yield forks
