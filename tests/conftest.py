"""What holds for every test."""

from __future__ import annotations

import gc
import os
import re
import signal
import sys
from itertools import count
from pathlib import Path

import pytest
from hypothesis import settings

from chockstone.extras import is_installed


def _limit_instruction_sets() -> None:
    """Before any test imports torch; what tests start inherits it."""
    from chockstone.backends.supervision.instruction_sets import limit_instruction_sets

    limit_instruction_sets()


def _save_starts() -> None:
    from support.certificates import share_certificates
    from support.forking import install

    share_certificates()
    install()


_numbers = count()
_LONGEST = (  # files with tests that take 15 seconds and more: they run first, and short ones fill the end of the run
    "ray_train/test_checkpointer.py",
    "ray/test_ray_serve.py",
    "ray/test_ray_group.py",
    "sdk/test_trackers.py",
    "sdk/test_crashes.py",
    "tests/test_dcp_torchrun.py",
    "resume/test_f11_f12.py",
    "hostile/test_live_network.py",
    "hostile/test_wall_clock.py",
    "hostile/test_schemathesis.py",
    "tests/test_resume_guide.py",
    "sdk/test_postgres.py",
    "faults/test_crash_steps.py",
)
if "PYTEST_XDIST_WORKER" in os.environ:  # each collects all tests
    gc.disable()  # until the first test: collections take a fourth of that time
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # else hundreds of processes compile the package, each for itself
sys.dont_write_bytecode = False  # and each process of each run compiles all tests
if is_installed("torch"):  # it is not where `make light` runs the tests of the plain install
    _limit_instruction_sets()
    _save_starts()
settings.register_profile("busy machine", deadline=None)  # an example may take any time beside other work
settings.load_profile("busy machine")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not item.nodeid.partition("::")[0].endswith(_LONGEST))  # else the order stays


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Name → directory of a small model of each architecture. All processes of a test run share them: read only."""
    from support.live import shared_models  # late: most tests need no server

    return shared_models(tmp_path_factory.getbasetemp())


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty directory. Pytest's own fixture lists those of all earlier tests to find a number for a new one."""
    name = re.sub(r"\W", "_", request.node.name)[:26]  # short: paths of sockets have at most 108 characters
    path = tmp_path_factory.getbasetemp() / f"{name}-{next(_numbers)}"
    path.mkdir(mode=0o700)
    return path


@pytest.fixture(autouse=True, scope="session")
def _short_collections() -> None:
    """Leave libraries and test modules out of garbage collections: they are millions of objects, and all stay.

    A test that unfreezes them must freeze them again.
    """
    gc.enable()
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _interruptible() -> None:
    """A shell leaves SIGINT ignored to what runs in its background, and flytekit takes it over when it is imported."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # else no test and no child of one can be interrupted
