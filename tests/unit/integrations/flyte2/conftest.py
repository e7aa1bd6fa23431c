"""Both storages, and a process that looks as if no platform had started it."""

from __future__ import annotations

import uuid
import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from chockstone.checkpoints.resume.attempts.places import AttemptPlaces
from chockstone.checkpoints.stores.bucket import S3Access
from support.integrations.flyte2_attempts import BUCKET, Storage
from support.loopback_s3 import ENVIRONMENT, make_bucket, s3_server, set_environment

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # flyte has models in the manner of an older pydantic
    import flyte.io  # noqa: F401

_OF_PLATFORMS = (
    "ACTION_NAME",
    "CHOCKSTONE_FLYTE_AUTO",
    "FLYTE_ATTEMPT_NUMBER",
    "JOBSET_RESTART_ATTEMPT",
    "RANK",
    "WORLD_SIZE",
)


@pytest.fixture(scope="session")
def flyte2_s3() -> Iterator[str]:
    with s3_server() as url:
        make_bucket(url, BUCKET)
        yield url


@pytest.fixture(autouse=True)
def no_platform(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # of a raw_data_path in S3 flyte makes a directory where it stands
    for name in _OF_PLATFORMS:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True)
def one_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Making a client takes longer than most tests; each endpoint has one."""
    monkeypatch.setattr("chockstone.integrations.flyte2.checkpointer.AttemptPlaces", _places)


@cache
def _places(*, access: S3Access | None) -> AttemptPlaces:
    return AttemptPlaces(access=access)


@pytest.fixture
def s3(flyte2_s3: str, monkeypatch: pytest.MonkeyPatch) -> Storage:
    """Reached as in a pod of Flyte: by FLYTE_AWS_…, while the AWS environment knows nothing."""
    set_environment(monkeypatch, flyte2_s3)
    for name in ("AWS_ENDPOINT_URL_S3", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("FLYTE_AWS_ENDPOINT", flyte2_s3)
    monkeypatch.setenv("FLYTE_AWS_ACCESS_KEY_ID", ENVIRONMENT["AWS_ACCESS_KEY_ID"])
    monkeypatch.setenv("FLYTE_AWS_SECRET_ACCESS_KEY", ENVIRONMENT["AWS_SECRET_ACCESS_KEY"])
    return Storage(f"s3://{BUCKET}/{uuid.uuid4().hex}", flyte2_s3)


@pytest.fixture(params=["file", "s3"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    if request.param == "file":
        return Storage(str(tmp_path / "store"))
    found: Storage = request.getfixturevalue("s3")
    return found
