"""The worker's process: how it ends."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys

import pytest

MIDDLE = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", sys.argv[1], sys.argv[2]], pass_fds=[int(sys.argv[2])])
child.wait()
"""
CHILD = """
import socket, sys, time
from chockstone.backends.worker.main import _die_with_server
sock = socket.socket(fileno=int(sys.argv[1]))
_die_with_server(sock)
sock.sendall(b"alive")
time.sleep(60)
"""


def test_a_worker_whose_server_is_gone_ends_before_it_has_loaded_anything() -> None:
    ours, theirs = socket.socketpair()
    ours.close()

    with theirs:
        command = [sys.executable, "-m", "chockstone.backends.worker.main", str(theirs.fileno())]
        ended = subprocess.run(command, pass_fds=[theirs.fileno()], timeout=60, capture_output=True)

    assert (ended.returncode, ended.stderr) == (0, b"")  # it has not even looked for its settings


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere only the channel tells")
def test_a_worker_is_killed_when_its_server_is_although_the_channel_stays_open() -> None:
    ours, theirs = socket.socketpair()
    ours.settimeout(60)
    with theirs:
        command = [sys.executable, "-c", MIDDLE, CHILD, str(theirs.fileno())]
        server = subprocess.Popen(command, pass_fds=[theirs.fileno()])

    with ours:
        assert ours.recv(5) == b"alive"
        os.kill(server.pid, signal.SIGKILL)
        server.wait()

        assert ours.recv(1) == b""
