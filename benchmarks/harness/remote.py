"""Remote objects: an object in a process of its own, whose methods are called from here.

The process sleeps between the calls. So a baseline has the machine's cores for itself while the server is idle, and
leaves no torch in the client. The process is a new Python that imports nothing but the module it is given.
"""

from __future__ import annotations

import importlib
import logging
import pickle
import subprocess
import sys
import traceback
import warnings
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
ANSWER_SECONDS = 1800.0
END_SECONDS = 10.0


class RemoteFailed(Exception):
    """The object could not be made, or a call of it raised. The first line says what, the others where."""


class RemoteObject:
    """``module`` and ``name`` are the class to make an object of, ``options`` what its constructor is given.

    ``python`` may be of an environment that lacks our packages, if ``module`` imports none of them.
    """

    def __init__(
        self,
        module: str,
        name: str,
        *,
        answer_seconds: float = ANSWER_SECONDS,
        python: str = sys.executable,
        **options: Any,  # Any: whatever the class takes
    ) -> None:
        self._answer_seconds = answer_seconds
        self._connection, theirs = Pipe()
        command = [python, "-m", __name__, str(theirs.fileno())]
        self._process = subprocess.Popen(command, cwd=REPOSITORY, pass_fds=[theirs.fileno()])
        theirs.close()
        self._connection.send((module, name, options))

    def __enter__(self) -> RemoteObject:
        try:
            self._receive()  # the object is made
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def call(self, method: str, **values: Any) -> Any:  # Any: the method's own
        self._connection.send((method, values))
        return self._receive()

    def _receive(self) -> Any:
        if not self._connection.poll(self._answer_seconds):
            raise RemoteFailed(f"no answer in {self._answer_seconds:.0f} seconds")
        try:
            succeeded, answer = self._connection.recv()
        except EOFError:
            raise RemoteFailed("the process ended without an answer") from None
        if not succeeded:
            raise RemoteFailed(answer)
        return answer

    def _end(self) -> None:
        self._connection.close()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _serve(connection: Connection) -> None:
    """Until the other end is closed."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    made: object = None
    while True:
        try:
            request = connection.recv()
        except EOFError:
            return
        try:
            if made is None:
                module, name, options = request
                made, result = getattr(importlib.import_module(module), name)(**options), None
            else:
                method, values = request
                result = getattr(made, method)(**values)
            answer = pickle.dumps((True, result))
        except Exception as error:  # recorded: raised again by the caller
            answer = pickle.dumps((False, f"{type(error).__name__}: {error}\n{traceback.format_exc(limit=-3)}"))
        connection.send_bytes(answer)


if __name__ == "__main__":
    _serve(Connection(int(sys.argv[1])))
