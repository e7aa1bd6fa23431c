from __future__ import annotations

import gc
import importlib.util
import subprocess
import sys
from collections.abc import Iterator

import pytest

from chockstone.backends.importing import hidden_packages, quick_imports

COUNT_COLLECTIONS = """
import gc
from chockstone.backends.importing import quick_imports
collections = []
gc.callbacks.append(lambda phase, info: collections.append(phase))
with quick_imports():
    import torch
print(len(collections), gc.isenabled(), gc.get_freeze_count() > 100_000)
"""


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    yield
    gc.unfreeze()


def test_nobody_collects_while_a_large_library_is_imported() -> None:
    told = subprocess.run([sys.executable, "-c", COUNT_COLLECTIONS], capture_output=True, text=True, check=True)

    assert told.stdout.split() == ["0", "True", "True"]


def test_garbage_is_collected_again_after_an_import_that_failed() -> None:
    with pytest.raises(ImportError), quick_imports():
        raise ImportError

    assert gc.isenabled()


def test_a_hidden_package_is_not_found_until_the_block_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "wave", raising=False)

    with hidden_packages("wave"):
        assert importlib.util.find_spec("wave") is None
        with pytest.raises(ImportError):
            importlib.import_module("wave")

    assert importlib.import_module("wave").__name__ == "wave"


def test_a_package_that_is_imported_already_stays() -> None:
    with hidden_packages("subprocess"):
        assert sys.modules["subprocess"] is subprocess

    assert sys.modules["subprocess"] is subprocess
