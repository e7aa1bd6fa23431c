"""The server that ``chockstone train`` starts for itself: `serve` in a child process, for as long as training runs.

It ends with the process that started it, even if that is killed. A server that dies in between is started again on the
same port: its runs recover, and the client retries meanwhile.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Final

from chockstone.cli.output.exit_codes import ExitCode
from chockstone.cli.output.reporting import CommandFailed
from chockstone.cli.settings.values import ModelSetting

KEY: Final = "tml-local"
_START_SECONDS: Final = 60.0
_STOP_SECONDS: Final = 30.0
_POLL_SECONDS: Final = 0.02
_RESTARTS: Final = 5
_LOG_LINES: Final = 8  # of its log, that are shown when it failed
_PR_SET_PDEATHSIG: Final = 1


class TrainingServerFailed(CommandFailed):
    """It did not start, or does not stay alive."""

    exit_code = ExitCode.FAILED


class TrainingServer:
    """Started on entering, stopped on leaving. To be used in the main thread, with which it ends."""

    def __init__(self, model: ModelSetting, home: Path, *, threads: int) -> None:
        self.url = ""
        self.model = model
        self._threads = threads  # for arithmetic; 0 takes every core
        self.data = home / "data"
        self.log = home / "server.log"
        self._port = 0  # any free one the first time, and then the same
        self._restarts = 0
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> TrainingServer:
        """Returns when it answers; torch may still be loading. Raises TrainingServerFailed."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        offset = self.log.stat().st_size if self.log.exists() else 0
        try:
            self._launch()
            self._await_banner(offset)
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """As Ctrl-C would; one that does not end is killed."""
        try:
            if self._process is not None and self._process.poll() is None:
                self._process.send_signal(signal.SIGINT)
                self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            pass
        finally:
            self.kill()

    def kill(self) -> None:
        """At once. Its worker ends by itself."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def revive(self) -> str | None:
        """Start the server again if it died, without waiting until it answers. Returns a message; None if it lives.

        Raises TrainingServerFailed when it keeps dying.
        """
        assert self._process is not None, "the server was not started"
        code = self._process.poll()
        if code is None:
            return None
        self._restarts += 1
        if self._restarts > _RESTARTS:
            raise TrainingServerFailed(
                f"the server died {self._restarts} times, the last time with {code}. {self._log_end()}"
            )
        self._launch()
        return f"the server died with {code} and was restarted; training continues when it answers"

    def _launch(self) -> None:
        command = [sys.executable, "-m", "chockstone.cli.training.server", str(os.getpid())]
        command += ["serve", f"--model={self.model.name}={self.model.directory.absolute()}"]
        command += [f"--data={self.data.absolute()}", f"--port={self._port}", f"--threads={self._threads}"]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603  # this program
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.log.parent,  # where no settings file stands
                env={name: value for name, value in os.environ.items() if not name.startswith("CHOCKSTONE_")},
                start_new_session=True,  # Ctrl-C is for the trainer, which still needs its server
            )

    def _await_banner(self, offset: int) -> None:
        assert self._process is not None
        deadline = time.monotonic() + _START_SECONDS
        while (said := re.search(rb"TINKER_BASE_URL=(\S+:(\d+))\n", self.log.read_bytes()[offset:])) is None:
            if self._process.poll() is not None:
                raise TrainingServerFailed(f"the server did not start. {self._log_end()}")
            if time.monotonic() > deadline:
                raise TrainingServerFailed(f"the server did not answer in {_START_SECONDS:.0f} s. {self._log_end()}")
            time.sleep(_POLL_SECONDS)
        self.url, self._port = said[1].decode(), int(said[2])

    def _log_end(self) -> str:
        last = self.log.read_text(errors="replace").splitlines()[-_LOG_LINES:]
        return "\n".join([f"The end of its log, {str(self.log)!r}:", *last])


def _end_with_parent(parent: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        sys.exit(ExitCode.FAILED)  # it died before it could be said


if __name__ == "__main__":
    from chockstone.cli import main

    _end_with_parent(int(sys.argv.pop(1)))
    main()
