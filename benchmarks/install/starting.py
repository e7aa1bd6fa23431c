"""Starting: imports of the library and commands, each in a new process of the plain install."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from functools import partial

from benchmarks.harness.context import Context
from benchmarks.harness.rounds import Metrics, Rows
from benchmarks.install.setup import Setup, run

NUMPY = "import numpy"
PACKAGE = "import chockstone.checkpoints"
CHECKPOINTER = "from chockstone.checkpoints import Checkpointer"
RESUME = "from chockstone.checkpoints import Resume"
HELP = "chockstone --help"
VERSION = "chockstone --version"
LIST = "chockstone checkpoints ls STORE"
IMPORTS = (PACKAGE, CHECKPOINTER)
COMMANDS = (HELP, VERSION, LIST)
OURS = (*IMPORTS, RESUME, *COMMANDS)

_TIMED = """
import sys, time
began, used = time.perf_counter(), time.process_time()
{statement}
print(time.perf_counter() - began, time.process_time() - used, len(sys.modules), "torch" in sys.modules)
"""


def measure_starting(context: Context, setup: Setup) -> Rows:
    context.describe("imports without the start of Python, commands with it")
    words = {HELP: ["--help"], VERSION: ["--version"], LIST: ["checkpoints", "ls", str(setup.store)]}
    turns: dict[str, Callable[[], Metrics]] = {
        each: partial(_import, setup, each) for each in (NUMPY, *IMPORTS, RESUME)
    } | {each: partial(_command, setup, words[each]) for each in COMMANDS}
    return context.run_rounds(turns, repeats=setup.repeats)


def _import(setup: Setup, statement: str) -> Metrics:
    seconds, cpu_seconds, modules, has_torch = run(setup.plain.python, "-c", _TIMED.format(statement=statement)).split()
    if has_torch != "False":
        raise RuntimeError(f"{statement!r} imported torch")
    return {"seconds": float(seconds), "cpu_seconds": float(cpu_seconds), "modules": float(modules)}


def _command(setup: Setup, words: list[str]) -> Metrics:
    began = time.perf_counter()
    subprocess.run([setup.plain.program, *words], check=True, stdout=subprocess.DEVNULL)
    return {"seconds": time.perf_counter() - began}
