"""Training scripts in processes of their own: killed with SIGKILL at a chosen step, started again, and compared.

A script reports each step with ``report``. The process that runs it is told at which step it must stop: there the
script waits, and is killed. So the kill comes at that step exactly, while a save may be running in the background.

    scripts = ScriptForks("torch", "transformers")                 # imports what is slow to import, once
    alone = scripts.run(SCRIPT, str(tmp_path / "alone"))
    killed = scripts.run(SCRIPT, str(tmp_path / "run"), kill_at_step=7)
    resumed = scripts.run(SCRIPT, str(tmp_path / "run"))
    assert_same_losses(alone, killed, resumed)
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TextIO
from warnings import simplefilter

from chockstone.checkpoints import Archive, list_checkpoints, open_store
from support.checkpoints.damage import flip
from support.forking.ending import run_and_end

_STOP_AT: Final = "TRAINING_STOPS_AT_STEP"
_STOPPED: Final = "training waits to be killed"
_TESTS: Final = Path(__file__).parents[1]  # scripts import what is in ``support``, too


def report(step: int, loss: float) -> None:
    """For the script, in one process: print the loss of a step to the bit, and wait for the kill if it is due here."""
    print(f"step {step} loss {float(loss).hex()}", flush=True)
    if os.environ.get(_STOP_AT) == str(step):
        print(_STOPPED, flush=True)
        while True:
            signal.pause()


@dataclass(frozen=True, slots=True)
class TrainingRun:
    """What one process, or one group of ranks, printed until it ended or was killed."""

    lines: tuple[str, ...]
    errors: str  # standard error
    is_killed: bool

    @property
    def losses(self) -> dict[int, float]:
        """By step."""
        reports = [line.split() for line in self.lines if line.startswith("step ")]
        return {int(words[1]): float.fromhex(words[3]) for words in reports}

    @property
    def first_step(self) -> int:
        """The first step that it trained: 1, or the one after the checkpoint that it resumed from."""
        return min(self.losses)


def assert_same_losses(alone: TrainingRun, *runs: TrainingRun) -> None:
    """Every step that one of ``runs`` trained has the loss, to the bit, of the run left alone; together they end it."""
    assert not alone.is_killed
    reached = 0
    for run in runs:
        assert run.losses, f"no step was trained:\n{run.errors}"
        assert run.first_step <= reached + 1, f"steps {reached + 1} to {run.first_step - 1} were never trained"
        differing = {step: loss for step, loss in run.losses.items() if alone.losses[step] != loss}
        assert not differing, f"these losses differ: {differing}"
        reached = max(run.losses)
    assert reached == max(alone.losses)


def run_training(
    command: Sequence[str], *, kill_at_step: int | None = None, environment: Mapping[str, str] | None = None
) -> TrainingRun:
    """Run a command, for example torchrun, until it ends; or until a step is reported, then kill it and its children.

    Raises AssertionError with its standard error if it fails.
    """
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**_with_support(), **(environment or {}), _STOP_AT: _spell(kill_at_step)},
        )
        assert process.stdout is not None
        with process:
            lines = _read(process.stdout, lambda: _kill_family(process.pid))
        errors.seek(0)
        return _ended(lines, errors.read(), process.returncode, kill_at_step)


class ScriptForks:
    """Runs scripts in processes that are forked from one that has imported the slow modules. Close it at the end."""

    def __init__(self, *imports: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "support.killed_training", *imports],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=_with_support() | {"OMP_NUM_THREADS": "1"},  # the models are tiny, and idle threads spin
        )

    def run(
        self,
        script: Path,
        *arguments: str,
        kill_at_step: int | None = None,
        environment: Mapping[str, str] | None = None,
        directory: Path | None = None,
        warnings: str | None = None,
    ) -> TrainingRun:
        """As ``run_training`` with ``python script *arguments``.

        ``warnings``: what becomes of them, as after ``-W``, except for those of what was imported before.
        """
        environ = {**os.environ, **(environment or {}), _STOP_AT: _spell(kill_at_step)}
        [run] = self._run(script, arguments, [environ], directory=directory, warnings=warnings)
        return _ended(run["lines"], run["errors"], run["code"], kill_at_step)

    def run_ranks(self, script: Path, *arguments: str, ranks: int) -> list[TrainingRun]:
        """A process for each rank, in the environment that torchrun gives it. Raises AssertionError if one fails."""
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = str(free.getsockname()[1])
        environs = [os.environ | rank_variables(rank, ranks, port) for rank in range(ranks)]
        return [
            _ended(run["lines"], run["errors"], run["code"], None) for run in self._run(script, arguments, environs)
        ]

    def _run(
        self,
        script: Path,
        arguments: Sequence[str],
        environs: Sequence[Mapping[str, str]],
        *,
        directory: Path | None = None,
        warnings: str | None = None,
    ) -> list[dict[str, Any]]:
        assert self._process.stdin is not None and self._process.stdout is not None
        request = {"script": str(script), "arguments": arguments, "environs": environs, "warnings": warnings}
        request["directory"] = str(directory or Path.cwd())
        print(json.dumps(request), file=self._process.stdin, flush=True)
        answer: list[dict[str, Any]] = json.loads(self._process.stdout.readline())
        return answer

    def close(self) -> None:
        with self._process:  # closes its pipes, on which it ends, and waits for it
            pass

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def rank_variables(rank: int, ranks: int, port: str) -> dict[str, str]:
    """What torchrun tells a rank on one machine."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "GROUP_RANK": "0",
        "ROLE_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "GROUP_WORLD_SIZE": "1",
        "ROLE_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "TORCHELASTIC_RUN_ID": "none",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
    }


def newest_archive(root: Path, prefix: str = "") -> Path:
    """The file of the newest checkpoint in a store that is a directory."""
    return root / f"{list_checkpoints(open_store(root), prefix)[-1].name}.tar"


def flip_bit(archive: Path) -> None:
    """Flip one bit in the middle of the largest tensor of an archive: damage that its head does not show."""
    with Archive(open_store(archive.parent).open(archive.stem)) as opened:
        largest = max(opened.all_tensors(), key=lambda tensor: tensor.entry.size)
        middle = largest.offset + largest.entry.size // 2
    flip(archive, middle)


def _with_support() -> dict[str, str]:
    """The environment of a process that can import ``support``: pytest adds it to its own path only."""
    paths = [str(_TESTS), os.environ.get("PYTHONPATH", "")]
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}


def _spell(step: int | None) -> str:
    return "" if step is None else str(step)


def _read(lines: Iterable[str], kill: Callable[[], None]) -> list[str]:
    read: list[str] = []
    for line in lines:
        if line.rstrip("\n") == _STOPPED:
            kill()
        else:
            read.append(line.rstrip("\n"))
    return read


def _ended(lines: list[str], errors: str, code: int, kill_at_step: int | None) -> TrainingRun:
    is_killed = code == -signal.SIGKILL
    assert is_killed == (kill_at_step is not None), f"the training ended with {code}:\n{errors}"
    assert is_killed or code == 0, f"the training failed with {code}:\n{errors}"
    return TrainingRun(tuple(lines), errors, is_killed)


def _kill_family(pid: int) -> None:
    """Kill a process and all its descendants. Each is stopped first, so that none starts another meanwhile."""
    family = [pid]
    for member in family:
        _signal(member, signal.SIGSTOP)
        family += _children(member)
    for member in family:
        _signal(member, signal.SIGKILL)


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += map(int, task.read_text().split())
        except OSError:  # the thread has just ended
            continue
    return found


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:  # it ended by itself
        return


def _serve(imports: Sequence[str]) -> None:
    import importlib

    for each in imports:
        importlib.import_module(each)
    for line in sys.stdin:
        print(json.dumps(_fork_all(**json.loads(line))), flush=True)


def _fork_all(environs: list[dict[str, str]], **how: Any) -> list[dict[str, Any]]:
    """Run a script once in each environment, all at the same time."""
    with ExitStack() as stack:
        forks = [_fork(stack, environ=environ, **how) for environ in environs]
        return [fork.end() for fork in forks]


@dataclass(frozen=True, slots=True)
class _Fork:
    pid: int
    output: TextIO
    errors: TextIO

    def end(self) -> dict[str, Any]:
        lines = _read(self.output, lambda: os.kill(self.pid, signal.SIGKILL))
        _, status = os.waitpid(self.pid, 0)
        self.errors.seek(0)
        return {"lines": lines, "errors": self.errors.read(), "code": os.waitstatus_to_exitcode(status)}


def _fork(stack: ExitStack, **how: Any) -> _Fork:
    reading, writing = os.pipe()
    errors = stack.enter_context(tempfile.TemporaryFile("w+"))  # noqa: SIM115  # closed with the stack
    pid = os.fork()
    if pid == 0:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(writing, 1)
        os.dup2(errors.fileno(), 2)
        os.close(reading)
        os.close(writing)
        _run_script(**how)
    os.close(writing)
    return _Fork(pid, stack.enter_context(os.fdopen(reading)), errors)


def _run_script(
    script: str, arguments: list[str], environ: dict[str, str], directory: str, warnings: str | None
) -> None:
    """Run a script as ``python script`` does, and end the process as Python does."""
    import runpy

    if warnings is not None:
        simplefilter(warnings)  # type: ignore[arg-type]  # one of its words
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environ)
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).parent))
    run_and_end(lambda: runpy.run_path(script, run_name="__main__"))


if __name__ == "__main__":
    _serve(sys.argv[1:])
