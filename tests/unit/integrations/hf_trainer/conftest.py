from __future__ import annotations

from collections.abc import Iterator

import pytest

from chockstone.extras import is_installed

if not (is_installed("transformers") and is_installed("accelerate")):
    collect_ignore_glob = ["*"]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """No contention beside other tests, which get their threads back."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
