"""Programs of ours are forked in tests. What they see is what an executed program sees."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from support.forking import executed, programs  # not where torch is missing

PROGRAM = "timeit"  # a module that runs code it is given
TELL = """
import json, os, random, resource, signal, sys
facts = {
    "arguments": sys.argv[1:],
    "original": sys.orig_argv[-3:],
    "directory": os.getcwd(),
    "path": sys.path,
    "variables": dict(os.environ),
    "umask": os.umask(0),
    "parent": os.getppid(),
    "leads_session": os.getsid(0) == os.getpid(),
    "leads_group": os.getpgid(0) == os.getpid(),
    "descriptors": sorted(int(name) for name in os.listdir("/proc/self/fd"))[:-1],
    "interrupt": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
    "terminate": signal.getsignal(signal.SIGTERM) == signal.SIG_DFL,
    "blocked": len(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    "files": resource.getrlimit(resource.RLIMIT_NOFILE),
    "threads": len(os.listdir("/proc/self/task")),
    "shown": open("/proc/self/cmdline", "rb").read().rstrip(b"\\0").decode(),
    "is_main": __import__("__main__").__name__,
}
print(json.dumps(facts))
"""


@pytest.fixture(autouse=True)
def _forked(monkeypatch: pytest.MonkeyPatch) -> None:
    if "CHOCKSTONE_TEST_EXEC" in os.environ:
        pytest.skip("programs are executed")
    monkeypatch.setattr(programs, "_MODULES", (PROGRAM,))


def command(code: str) -> list[str]:
    return [sys.executable, "-P", "-m", PROGRAM, "-n1", "-r1", "-s", code, "pass"]


def is_forked(process: subprocess.Popen[Any]) -> bool:
    """The command line of a zygote is longer than that of the program, and the rest of it is empty."""
    return Path(f"/proc/{process.pid}/cmdline").read_bytes().endswith(b"\0\0")


def tell(directory: Path, passed: int, group: int | None) -> tuple[dict[str, Any], str]:
    process = subprocess.Popen(
        command(TELL),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=directory,
        env={**os.environ, "COLOUR": "red"},
        pass_fds=[passed],
        start_new_session=group is None,
        process_group=group,
    )
    out, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    return json.loads(out.splitlines()[0]), errors


@pytest.mark.parametrize("group", [None, 0])
def test_a_forked_program_sees_what_an_executed_one_sees(tmp_path: Path, group: int | None) -> None:
    reading, writing = os.pipe()
    with executed():
        expected = tell(tmp_path, writing, group)

    given = tell(tmp_path, writing, group)

    os.close(reading)
    os.close(writing)
    assert given == expected
    assert given[0]["parent"] == os.getpid()
    assert given[0]["variables"]["COLOUR"] == "red"


def test_forked_programs_draw_different_random_numbers() -> None:
    code = "import random, numpy, uuid; print(random.random(), numpy.random.random(), uuid.uuid4())"

    said = [subprocess.run(command(code), capture_output=True, text=True, check=True).stdout for _ in range(2)]

    numbers = [line.splitlines()[0].split() for line in said]
    assert all(first != second for first, second in zip(*numbers, strict=True))


@pytest.mark.parametrize(("code", "expected"), [("1 / 0", 1), ("import os; os.kill(os.getpid(), 9)", -9)])
def test_the_exit_code_of_a_forked_program_is_its_own(code: str, expected: int) -> None:
    process = subprocess.Popen(command(code), stderr=subprocess.DEVNULL)

    assert process.wait(60) == expected


def test_a_forked_program_is_killed_as_others_are() -> None:
    process = subprocess.Popen(command("import time; print('up', flush=True); time.sleep(60)"), stdout=subprocess.PIPE)
    with process:
        assert process.stdout is not None and process.stdout.readline() == b"up\n"
        assert is_forked(process)

        process.send_signal(signal.SIGTERM)

    assert process.returncode == -signal.SIGTERM


@pytest.mark.parametrize("variable", ["PYTHONPATH", "LD_PRELOAD", "OMP_NUM_THREADS", "HF_HOME", "ATEN_CPU_CAPABILITY"])
def test_a_program_in_an_environment_that_changes_imports_is_executed(variable: str) -> None:
    code = "print('up', flush=True); input()"
    with subprocess.Popen(
        command(code), stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, variable: ""}
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == b"up\n"
        assert not is_forked(process)
        process.communicate(b"\n")


def test_commands_of_others_and_models_of_the_hub_are_executed() -> None:
    python = [sys.executable, "-m", PROGRAM]

    assert programs.find_program([*python, "serve", "--model=tiny=/models/tiny"]) is not None
    assert programs.find_program([*python, "serve", "--model=owner/name"]) is None
    assert programs.find_program([*python, "serve", "--model", "owner/name"]) is None
    assert programs.find_program([sys.executable, "-c", "pass"]) is None
    assert programs.find_program([sys.executable, "-I", "-m", PROGRAM]) is None
    assert programs.find_program([sys.executable, "script.py"]) is None
    assert programs.find_program(["/usr/bin/true"]) is None
