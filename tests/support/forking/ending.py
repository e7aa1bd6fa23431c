"""The end of a forked program: as Python ends, but without taking modules apart, which takes longer than many tests."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Callable
from typing import NoReturn


def run_and_end(program: Callable[[], object]) -> NoReturn:
    """Run a program to its end, wait for its threads, call what it registered, flush, and exit with its code.

    Exceptions other than SystemExit are raised: Python prints them and ends.
    """
    code: object = None
    try:
        program()
    except SystemExit as end:
        code = end.code
    if code is not None and not isinstance(code, int):
        print(code, file=sys.stderr)
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]  # private; waits for threads
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit((code or 0) & 0xFF)
