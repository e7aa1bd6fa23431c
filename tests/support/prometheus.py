"""A real Prometheus on loopback that scrapes a server, for as long as a block runs."""

from __future__ import annotations

import math
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import httpx
import yaml

from support.programs import find_program

_START_SECONDS: Final = 60.0
_PATIENCE_SECONDS: Final = 90.0


class LivePrometheus:
    """Scrapes ``targets`` every second and evaluates ``rules`` as often."""

    def __init__(self, home: Path, *, targets: list[str], rules: Path) -> None:
        self._program = find_program("prometheus")
        self._home = home
        self._targets = targets
        self._rules = rules
        self._process: subprocess.Popen[bytes] | None = None
        self._http = httpx.Client(timeout=30, trust_env=False)
        self._log = home / "prometheus.log"

    def __enter__(self) -> LivePrometheus:
        self._home.mkdir(parents=True, exist_ok=True)
        config = self._home / "prometheus.yml"
        config.write_text(
            yaml.safe_dump(
                {
                    "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
                    "rule_files": [str(self._rules)],
                    "scrape_configs": [{"job_name": "chockstone", "static_configs": [{"targets": self._targets}]}],
                }
            )
        )
        port = _free_port()
        self._http.base_url = httpx.URL(f"http://127.0.0.1:{port}")
        words = [f"--config.file={config}", f"--storage.tsdb.path={self._home / 'series'}"]
        words += [f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn"]
        with open(self._log, "wb") as log:
            self._process = subprocess.Popen([self._program, *words], stdout=log, stderr=log)
        self._wait_for(self._is_ready, "become ready", _START_SECONDS)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._http.close()
        if self._process is not None:
            self._process.terminate()
            self._process.wait(30)

    def ask(self, query: str) -> list[float]:
        """The values of all series of an instant query. Raises AssertionError with Prometheus' message."""
        answer = self._http.get("/api/v1/query", params={"query": query})
        content = answer.json()
        assert answer.status_code == 200 and content["status"] == "success", f"{query}: {answer.text}"
        result = content["data"]["result"]
        samples = [result] if content["data"]["resultType"] == "scalar" else [series["value"] for series in result]
        return [float(value) for _, value in samples]

    def numbers(self, query: str) -> list[float]:
        """The values that are numbers."""
        return [value for value in self.ask(query) if not math.isnan(value)]

    def wait_for(self, query: str) -> None:
        """Until the query has a series."""
        self._wait_for(lambda: bool(self.ask(query)), f"find {query!r}", _PATIENCE_SECONDS)

    def rules(self) -> list[dict[str, Any]]:
        groups = self._http.get("/api/v1/rules").json()["data"]["groups"]
        return [rule for group in groups for rule in group["rules"]]

    def _is_ready(self) -> bool:
        try:
            return self._http.get("/-/ready").status_code == 200
        except httpx.TransportError:
            return False

    def _wait_for(self, is_so: Callable[[], bool], what: str, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not is_so():
            assert self._process is not None and self._process.poll() is None, self._log.read_text()
            assert time.monotonic() < deadline, f"Prometheus did not {what} in time:\n{self._log.read_text()}"
            time.sleep(0.05)


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port
