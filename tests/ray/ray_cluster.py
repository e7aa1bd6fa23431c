"""A Ray cluster of several nodes, all of them on this machine, for tests that join one."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType

import pytest

from support.live import descendants

SCRIPT = Path(__file__).with_name("cluster_process.py")


def need_ray() -> None:
    """Skip the module where Ray is absent; it must not be in CI."""
    spec = find_spec("ray")
    if spec is not None and spec.origin is not None:  # and not this folder
        return
    if os.environ.get("CI"):
        pytest.fail("Ray is not installed: pip install 'chockstone[ray]'")
    pytest.skip("needs Ray: pip install 'chockstone[ray]'", allow_module_level=True)


def ray_processes(pid: int) -> list[int]:
    """Workers of ours among what that process has started, in the order of their starts."""
    return [each for each in descendants(pid) if _title(each).startswith("ray::ChockstoneWorker")]


def _title(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""


class RayCluster:
    """For the time of a block. ``cpus`` of each node."""

    def __init__(self, directory: Path, *, cpus: int = 1) -> None:
        self._directory = directory
        self._cpus = cpus
        self.address = ""

    def __enter__(self) -> RayCluster:
        self._temporary = tempfile.TemporaryDirectory(
            prefix="ray-", ignore_cleanup_errors=True
        )  # names are short there
        environment = os.environ | {"RAY_USAGE_STATS_ENABLED": "0", "RAY_TMPDIR": self._temporary.name}
        self._errors = (self._directory / "cluster.log").open("wb")
        self._process = subprocess.Popen(
            [sys.executable, str(SCRIPT), str(self._cpus)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=environment,
            start_new_session=True,
        )
        self.address = self._hear()
        return self

    @property
    def pid(self) -> int:
        return self._process.pid

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(60)
        finally:
            self._process.kill()
            self._process.wait()
            self._process.stdout.close()
            self._errors.close()
            self._temporary.cleanup()

    def add(self) -> int:
        """A node; its number."""
        return int(self._tell("add"))

    def remove(self, node: int) -> None:
        """As if its machine were switched off."""
        self._tell(f"remove {node}")

    def _tell(self, words: str) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{words}\n")
        self._process.stdin.flush()
        return self._hear()

    def _hear(self) -> str:
        assert self._process.stdout is not None
        while line := self._process.stdout.readline():
            if line.startswith("cluster: "):
                return line.removeprefix("cluster: ").strip()
        raise AssertionError((self._directory / "cluster.log").read_text())
