"""Roots to keep attempts in, on disk and on loopback S3, and paths as Flyte makes them."""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

os.environ["FLYTE_SDK_RICH_TRACEBACKS"] = "0"  # or flytekit takes over how every exception is printed
pytest.importorskip("flytekit")

from support.integrations.flyte_attempts import Root
from support.loopback_s3 import Proxy, faulty_proxy, make_bucket, s3_server, set_environment

BUCKET = "flyte"


@pytest.fixture(scope="session")
def s3() -> Iterator[str]:
    with s3_server() as url:
        make_bucket(url, BUCKET)
        yield url


@pytest.fixture(autouse=True)
def no_platform(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the machine that runs the tests passes for Flyte's."""
    for name in list(os.environ):
        if name.startswith(("FLYTE_INTERNAL_", "FLYTE_AWS_", "FLYTE_ATTEMPT", "FLYTE_EXECUTION", "_F_", "RAY_")):
            monkeypatch.delenv(name)
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(params=["file", "s3"])
def root(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Root]:
    if request.param == "file":
        yield Root(str(tmp_path / "raw"))
    else:
        set_environment(monkeypatch, request.getfixturevalue("s3"))
        yield Root(f"s3://{BUCKET}/{uuid.uuid4().hex}")
    wait_for_forwards()


@pytest.fixture
def proxied(s3: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Root, Proxy]]:
    with faulty_proxy(s3) as proxy:
        set_environment(monkeypatch, proxy.url)
        yield Root(f"s3://{BUCKET}/{uuid.uuid4().hex}"), proxy
        proxy.heal()
        wait_for_forwards()


def wait_for_forwards() -> None:
    """They go on after their test, and would find their store gone."""
    for thread in threading.enumerate():
        if thread.name == "chockstone-forward":
            thread.join(20)
