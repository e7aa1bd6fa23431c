"""vLLM servers for tests: the real thing, on the CPU and in float32."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType

import httpx
import pytest

ROOT = Path(__file__).parents[2]
PYTHON = Path(os.environ.get("CHOCKSTONE_VLLM_PYTHON", ROOT / ".venv-vllm" / "bin" / "python"))
_START_SECONDS = 400.0


class Engine:
    """One ``vllm serve``; started on entering, and killed with all its processes on leaving."""

    def __init__(self, name: str, model: Path, home: Path, *flags: str) -> None:
        self.name = name
        self._model = model
        self._log = home.with_suffix(".log")
        self._flags = flags
        self._process: subprocess.Popen[bytes] | None = None
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Engine:
        self.launch()
        self.wait()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.kill()

    def launch(self) -> None:
        if not PYTHON.exists():
            (pytest.fail if os.environ.get("CI") else pytest.skip)("vLLM is not installed: run `make vllm`")
        command = [str(PYTHON), "-m", "vllm.entrypoints.openai.api_server", "--model", str(self._model)]
        command += ["--served-model-name", self.name, "--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--dtype", "float32", "--enforce-eager", "--enable-lora", "--max-lora-rank", "16"]
        command += ["--max-loras", "2", "--max-cpu-loras", "2", "--max-num-seqs", "32"]
        # A prompt that it reads in several pieces, with a seed, ends the CPU build.
        command += ["--no-enable-chunked-prefill", "--max-num-batched-tokens", "8192", *self._flags]
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("CHOCKSTONE_", "TINKER_"))},
            "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1",
            "HF_HUB_OFFLINE": "1",
        }
        with open(self._log, "ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)

    def wait(self) -> None:
        """Until it is well."""
        assert self._process is not None
        deadline = time.monotonic() + _START_SECONDS
        while True:
            assert self._process.poll() is None, f"vLLM ended with {self._process.returncode}:\n{self.log()[-5000:]}"
            assert time.monotonic() < deadline, f"vLLM does not start:\n{self.log()[-5000:]}"
            try:
                if httpx.get(f"{self.url}/health", timeout=5, trust_env=False).status_code == 200:
                    return
            except httpx.TransportError:
                time.sleep(0.5)

    def kill(self) -> None:
        """At once."""
        if self._process is None:
            return
        for pid in _session(self._process.pid):
            os.kill(pid, 9)
        self._process.wait()
        self._process = None

    def adapters(self) -> set[str]:
        """Names of those it has loaded."""
        cards = httpx.get(f"{self.url}/v1/models", timeout=30, trust_env=False).json()["data"]
        return {card["id"] for card in cards if card.get("parent")}

    def requests(self) -> int:
        """Completions that it has answered."""
        return self.log().count('"POST /v1/completions HTTP/1.1" 200')

    def log(self) -> str:
        return self._log.read_text(errors="replace")


def _session(leader: int) -> list[int]:
    """Its processes."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split() if entry.name.isdigit() else []
        except OSError:
            continue
        if fields and int(fields[3]) == leader:
            found.append(int(entry.name))
    return found
