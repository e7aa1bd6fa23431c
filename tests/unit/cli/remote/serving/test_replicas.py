from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.cli.loopback import Loopback, serve_on_loopback


@pytest.fixture
def replicated(tmp_path: Path) -> Iterator[Loopback]:
    with serve_on_loopback(tmp_path / "server", replicas=2) as loopback:
        yield loopback


def test_replicas_are_listed_drained_and_added(replicated: Loopback) -> None:
    lines = replicated.run("replicas", "ls").stdout.splitlines()
    assert [line.split()[:3] for line in lines[1:]] == [["0", "ready", "0"], ["1", "ready", "0"]]

    assert replicated.run("replicas", "drain", "0").stdout == "replica 0 has left; 0 runs moved\n"
    assert [each["number"] for each in replicated.json("replicas", "ls")["replicas"]] == [1]
    last = replicated.run("replicas", "drain", "1")
    assert (last.exit_code, "nowhere to go" in last.stderr) == (2, True)
    assert replicated.run("replicas", "add").stdout == "replica 0 is ready\n"
    assert replicated.run("replicas", "undrain", "1").stdout == "replica 1 is ready\n"
    assert replicated.json("replicas", "drain", "1") == {"number": 1, "runs": 0, "has_left": True}
    assert replicated.run("replicas", "drain", "7").exit_code == 1


def test_a_replica_that_does_not_start_fails_the_command(replicated: Loopback) -> None:
    engine = replicated.served.engine
    make = replicated.served.backends[0].__class__
    start = make.start

    async def fail(backend: object) -> None:
        engine.membership.note_failed(2, "it has no memory")

    make.start = fail  # type: ignore[method-assign, assignment]  # of the replica that joins
    try:
        added = replicated.run("replicas", "add")
    finally:
        make.start = start  # type: ignore[method-assign]

    assert added.exit_code == 1
    assert "replica 2 is not ready: it has no memory" in added.stderr
    assert "replica 2 is not ready: it has no memory" in replicated.run("replicas", "ls").stdout
    assert replicated.run("replicas", "drain", "2").exit_code == 0


def test_a_server_with_one_worker_refuses_to_change_replicas(asked: Loopback) -> None:
    assert [line.split()[0] for line in asked.run("replicas", "ls").stdout.splitlines()] == ["REPLICA", "0"]

    added = asked.run("replicas", "add")

    assert (added.exit_code, "--replicas N" in added.stderr) == (2, True)
