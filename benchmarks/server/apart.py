"""Apart: an object in a process of its own, whose methods are called from here and which sleeps in between.

So a baseline has the machine's cores for itself while the server idles, and leaves no torch in the client.
"""

from __future__ import annotations

import importlib
import multiprocessing
import traceback
import warnings
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any

TIMEOUT_SECONDS = 1800


class FailedApart(Exception):
    """What was called there raised; the message is its last lines."""


class Apart:
    """``module`` and ``name`` say what to make there, with ``options``."""

    def __init__(self, module: str, name: str, **options: Any) -> None:  # Any: whatever the class takes
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, module, name, options), daemon=True)
        self._process.start()
        theirs.close()

    def __enter__(self) -> Apart:
        self._receive()  # it is made
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._connection.close()
        self._process.join(10)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    def call(self, method: str, **values: Any) -> Any:  # Any: the method's own
        self._connection.send((method, values))
        return self._receive()

    def _receive(self) -> Any:
        if not self._connection.poll(TIMEOUT_SECONDS):
            raise FailedApart(f"no answer in {TIMEOUT_SECONDS} seconds")
        try:
            succeeded, answer = self._connection.recv()
        except EOFError:
            raise FailedApart("the process ended without an answer") from None
        if not succeeded:
            raise FailedApart(answer)
        return answer


def _serve(connection: Connection, module: str, name: str, options: dict[str, Any]) -> None:
    warnings.simplefilter("ignore")
    try:
        made = getattr(importlib.import_module(module), name)(**options)
    except Exception:  # recorded: raised again where it was wanted
        connection.send((False, traceback.format_exc(limit=-3)))
        return
    connection.send((True, None))
    while True:
        try:
            method, values = connection.recv()
        except EOFError:
            return
        try:
            answer = (True, getattr(made, method)(**values))
        except Exception:  # recorded: raised again where it was called
            answer = (False, traceback.format_exc(limit=-3))
        connection.send(answer)
