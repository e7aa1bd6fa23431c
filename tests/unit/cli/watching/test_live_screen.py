"""The real command in a pseudo-terminal, with a server on loopback that goes away and comes back."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.cli.loopback import Loopback, serve_on_loopback
from support.cli.remote_commands import fill

_EVENT_SECONDS = 60.0  # an upper bound on a busy machine
ENTER, LEAVE, SHOW_CURSOR = b"\x1b[?1049h", b"\x1b[?1049l", b"\x1b[?25h"


class Terminal:
    """A terminal with the command in it."""

    def __init__(self, url: str, *words: str, columns: int = 80, rows: int = 24) -> None:
        self.master, slave = pty.openpty()
        self.before = termios.tcgetattr(slave)
        self.resize(columns, rows, slave)
        environment = {
            name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")
        }
        environment |= {"TERM": "xterm-256color", "TINKER_BASE_URL": url, "TINKER_API_KEY": "tml-local"}
        environment |= {"PYTHONUTF8": "1"}
        command = [sys.executable, "-m", "chockstone.cli", "watch", "--interval", "0.5", *words]
        self.process = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, env=environment, start_new_session=True, close_fds=True
        )
        self.slave = slave
        self.output = b""

    def resize(self, columns: int, rows: int, descriptor: int | None = None) -> None:
        size = struct.pack("HHHH", rows, columns, 0, 0)
        fcntl.ioctl(self.slave if descriptor is None else descriptor, termios.TIOCSWINSZ, size)

    def wait_for(self, text: str, *, since: int = 0) -> int:
        """Returns how much was printed until ``text`` had been."""
        deadline = time.monotonic() + _EVENT_SECONDS
        while (at := self.output.find(text.encode(), since)) < 0:
            is_over = self.process.poll() is not None or time.monotonic() > deadline
            self._read(0.2)
            assert not is_over or text.encode() in self.output, f"never printed {text!r}:\n{self.output[-3000:]!r}"
        return at

    def end(self) -> int:
        """The exit code, with all output read."""
        deadline = time.monotonic() + _EVENT_SECONDS
        while self.process.poll() is None:
            assert time.monotonic() < deadline, "the command does not end"
            self._read(0.1)
        self._read(0.1)
        return self.process.returncode

    def is_clean(self) -> bool:
        """Whether the screen, the cursor and the modes of the terminal are as they were."""
        left = self.output.rfind(LEAVE) > self.output.rfind(ENTER) >= 0
        return left and SHOW_CURSOR in self.output and termios.tcgetattr(self.slave) == self.before

    def _read(self, seconds: float) -> None:
        if select.select([self.master], [], [], seconds)[0]:
            self.output += os.read(self.master, 1 << 16)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.master)
        os.close(self.slave)


@contextmanager
def watching(url: str, *words: str, columns: int = 80) -> Iterator[Terminal]:
    terminal = Terminal(url, *words, columns=columns)
    try:
        yield terminal
    finally:
        terminal.close()


@pytest.fixture(scope="module")
def loopback(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loopback]:
    with serve_on_loopback(tmp_path_factory.mktemp("watch") / "home") as served:
        fill(served)
        yield served


def test_q_quits_and_leaves_a_clean_terminal(loopback: Loopback) -> None:
    with watching(loopback.url) as terminal:
        terminal.wait_for("LOSS CURVE")
        os.write(terminal.master, b"xq")

        assert terminal.end() == 0
        assert terminal.is_clean()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_leaves_a_clean_terminal(loopback: Loopback, number: signal.Signals, code: int) -> None:
    with watching(loopback.url) as terminal:
        terminal.wait_for("LOSS CURVE")
        terminal.process.send_signal(number)

        assert terminal.end() == code
        assert terminal.is_clean()
        assert b"Traceback" not in terminal.output


def test_it_follows_new_points_and_the_size_of_the_terminal(loopback: Loopback) -> None:
    run_id, _ = fill(loopback)
    with watching(loopback.url) as terminal:
        at = terminal.wait_for("LOSS CURVE")
        points = {"points": [{"step": 1, "values": {"loss": 7.125}}]}
        loopback.wait(loopback.served.http.post(f"training_runs/{run_id}/metrics", json=points))
        at = terminal.wait_for("7.125", since=at)
        terminal.resize(120, 30)
        terminal.process.send_signal(signal.SIGWINCH)
        terminal.wait_for("q quits", since=at)
        assert not re.search(rb"Traceback", terminal.output)
        os.write(terminal.master, b"q")

        assert terminal.end() == 0


def test_it_reconnects_to_a_server_that_comes_back(tmp_path: Path) -> None:
    from support.watching import Relay

    with serve_on_loopback(tmp_path / "home") as loopback, Relay(loopback.url) as relay:
        with watching(relay.url) as terminal:
            at = terminal.wait_for("q quits")
            relay.close()
            at = terminal.wait_for("reconnecting for", since=at)
            relay.listen()
            fill(loopback)
            terminal.wait_for("LOSS CURVE", since=at)
            os.write(terminal.master, b"q")

            assert terminal.end() == 0
            assert terminal.is_clean()


def test_a_server_that_is_not_there_at_the_start_is_an_error(tmp_path: Path) -> None:
    with watching("http://127.0.0.1:9") as terminal:
        assert terminal.end() == 3
        assert b"no server answers" in terminal.output
        assert ENTER not in terminal.output
