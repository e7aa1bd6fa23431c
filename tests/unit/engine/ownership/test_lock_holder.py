from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import orjson
import pytest

from chockstone.engine.ownership.data_directory import is_lock_lost, owned
from chockstone.engine.ownership.lock_holder import LockHolder, find_holder, record_holder

HOLD = """
import sys
from pathlib import Path
from chockstone.engine.ownership.data_directory import owned
from chockstone.engine.ownership.lock_holder import record_holder

with owned(Path(sys.argv[1])) as lock:
    record_holder(lock, address="127.0.0.1:8000")
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_server_that_runs_is_found_with_its_address(tmp_path: Path) -> None:
    with owned(tmp_path) as lock:
        record_holder(lock, address="127.0.0.1:8000")

        assert find_holder(tmp_path) == LockHolder(os.getpid(), "127.0.0.1:8000", is_stopping=False)
        record_holder(lock, address="[::1]:9", is_stopping=True)
        assert find_holder(tmp_path) == LockHolder(os.getpid(), "[::1]:9", is_stopping=True)
        assert not is_lock_lost(tmp_path, lock)


def test_a_server_that_was_killed_is_not_found_even_before_it_is_reaped(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as server:
        assert server.stdout is not None and server.stdout.readline() == b"held\n"
        assert find_holder(tmp_path) == LockHolder(server.pid, "127.0.0.1:8000", is_stopping=False)

        server.kill()
        os.waitid(os.P_PID, server.pid, os.WEXITED | os.WNOWAIT)

        assert find_holder(tmp_path) is None
    assert find_holder(tmp_path) is None


@pytest.mark.parametrize("name", ["started", "boot", "namespace"])
def test_another_process_of_the_same_number_is_not_taken_for_it(tmp_path: Path, name: str) -> None:
    with owned(tmp_path) as lock:
        record_holder(lock, address="127.0.0.1:8000")
    record = orjson.loads((tmp_path / "lock").read_bytes())

    (tmp_path / "lock").write_bytes(orjson.dumps({**record, name: "another"}))

    assert find_holder(tmp_path) is None


@pytest.mark.parametrize("content", [None, b"", b"{", b"[]", b'{"pid": "x"}', b"\xff" * 10_000])
def test_a_lock_file_without_a_record_tells_nothing(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "lock").write_bytes(content)

    assert find_holder(tmp_path) is None
