"""Many attempts: what each asks of S3 does not grow, and the copies for flytekit do not pile up."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import boto3
import pytest

from chockstone.checkpoints.resume.attempts import places
from chockstone.checkpoints.retention.policy import Retention
from chockstone.checkpoints.stores.object_store import connect
from chockstone.integrations.flyte.errors import ResumeBlockedForNow
from support.integrations.flyte_attempts import Root, flyte_native
from support.loopback_s3 import Proxy

ATTEMPTS = 9
MOST_REQUESTS = 45  # of which five are for the one file of a state: read it, copy it twice, remove an older copy
STATE = 100_000


def states(root: Root) -> list[str]:
    """Whole states on the store, archives and copies alike."""
    if not root.uri.startswith("s3://"):
        return [str(path) for path in Path(root.uri).rglob("*") if path.is_file() and path.stat().st_size >= STATE]
    bucket, _, prefix = root.uri.removeprefix("s3://").partition("/")
    listed = boto3.client("s3").list_objects_v2(Bucket=bucket, Prefix=prefix)
    return [item["Key"] for item in listed["Contents"] if item["Size"] >= STATE]


def test_requests_and_states_do_not_grow_with_the_number_of_attempts(
    proxied: tuple[Root, Proxy], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "connect", cache(connect))
    root, proxy = proxied
    counts: list[int] = []
    for number in range(ATTEMPTS):
        proxy.requests.clear()
        checkpoint = root.attempt(number)
        if number:
            checkpoint.restore()
        checkpoint.close()
        checkpoint.write(os.urandom(STATE))
        counts.append(len(proxy.requests))

    assert max(counts) <= MOST_REQUESTS
    assert counts[-1] <= counts[-4]
    assert len(states(root)) <= 2 + 2  # what retention keeps, and two copies


@pytest.mark.parametrize("keep_last", [2, 5])
def test_copies_for_flytekit_stay_in_the_two_newest_attempts(root: Root, keep_last: int) -> None:
    for number in range(keep_last + 3):
        checkpoint = root.attempt(number, retention=Retention(keep_last=keep_last))
        if number:
            assert checkpoint.read() == (number - 1).to_bytes(1) * STATE
        checkpoint.close()
        checkpoint.write(number.to_bytes(1) * STATE)

    assert len(states(root)) == keep_last + 2
    for number in (keep_last + 2, keep_last + 1):  # a task that goes back to flytekit's own checkpoint reads these
        content = flyte_native("read", dest=root.path(99), src=root.path(number))
        assert content == number.to_bytes(1) * STATE


def test_a_file_that_somebody_else_put_beside_the_copies_stays(tmp_path: Path) -> None:
    root = Root(str(tmp_path))
    for number in range(4):
        checkpoint = root.attempt(number)
        if number:
            checkpoint.restore()
        checkpoint.close()
        checkpoint.write(b"ours")
        if number == 0:
            (Path(root.path(0)) / "notes.txt").write_bytes(b"theirs")

    assert [path.name for path in Path(root.path(0)).iterdir()] == ["notes.txt"]


def test_a_full_scratch_disk_ends_the_attempt_and_not_the_task(
    root: Root, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    root.attempt(0).write(b"state")

    def full(*_: object, **__: object) -> str:
        raise OSError(28, os.strerror(28))

    second = root.attempt(1)
    second._td.name  # noqa: B018  # made while there was room
    with monkeypatch.context() as patch:
        patch.setattr("chockstone.integrations.flyte.staging.tempfile.mkdtemp", full)
        with pytest.raises(ResumeBlockedForNow, match="of this machine") as caught:
            second.restore()

    assert "not at fault" in str(caught.value)
    assert root.attempt(2).read() == b"state"
