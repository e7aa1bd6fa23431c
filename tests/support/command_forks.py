"""Commands of a Python module, each in a process of its own that is forked from one that has imported the module.

A client's command line takes seconds to import and milliseconds to run. Run as a script, this file is that process:
it reads a command per line, forks, runs the module as ``python -m`` does, and writes the exit code.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path


class CommandForks:
    def __init__(self, module: str, imports: Sequence[str]) -> None:
        """``imports``: modules that ``module`` imports when it runs."""
        self._process = subprocess.Popen(
            [sys.executable, __file__, module, *imports], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        atexit.register(self._end)

    def run(self, *words: str, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        """Without standard input."""
        assert self._process.stdin is not None and self._process.stdout is not None
        with tempfile.TemporaryDirectory() as home:
            out, err = Path(home, "out"), Path(home, "err")
            command = {"words": words, "env": dict(env), "out": str(out), "err": str(err)}
            print(json.dumps(command), file=self._process.stdin, flush=True)
            code = int(self._process.stdout.readline())
            return subprocess.CompletedProcess(words, code, out.read_text(), err.read_text())

    def _end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


@cache
def command_forks(module: str, *imports: str) -> CommandForks:
    """The one of this process."""
    return CommandForks(module, imports)


def serve_commands(module: str, imports: Sequence[str]) -> None:
    import importlib

    for each in (f"{module}.__main__", *imports):
        importlib.import_module(each)
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            run_command(module, **json.loads(line))
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def run_command(module: str, *, words: list[str], env: dict[str, str], out: str, err: str) -> None:
    import runpy
    import warnings

    for number, path, flags in (
        (0, os.devnull, os.O_RDONLY),
        (1, out, os.O_WRONLY | os.O_CREAT),
        (2, err, os.O_WRONLY | os.O_CREAT),
    ):
        os.dup2(os.open(path, flags, 0o600), number)
    os.environ.clear()
    os.environ.update(env)
    sys.argv = [module, *words]
    warnings.filterwarnings("ignore", message=".*found in sys.modules after import")  # it is imported, on purpose
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from support.forking.ending import run_and_end

    del sys.path[0]
    run_and_end(lambda: runpy.run_module(module, run_name="__main__", alter_sys=True))


if __name__ == "__main__":
    serve_commands(sys.argv[1], sys.argv[2:])
