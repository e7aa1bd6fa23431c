"""A real S3 server on the loopback interface, and a proxy in front of it that misbehaves on request.

The server is moto's, in a process of its own that ends when the tests do, also when they are killed. It answers one
request at a time: moto checks a condition and then acts on it, which S3 does in one step. The proxy lives in this
process; each answer closes its connection.
"""

from __future__ import annotations

import atexit
import http.client
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import pytest

from chockstone.extras import is_installed

HOST: Final = "127.0.0.1"
ENVIRONMENT: Final = {
    "AWS_ACCESS_KEY_ID": "loopback-key-id",
    "AWS_SECRET_ACCESS_KEY": "loopback-secret",
    "AWS_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    "NO_PROXY": HOST,
}
FORGOTTEN: Final = ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL")


class _Servers:
    """The process that forks servers: it has imported moto, which takes seconds."""

    def __init__(self) -> None:
        command = [sys.executable, "-W", "ignore", __file__]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self._lock = threading.Lock()
        atexit.register(self._end)

    def ask(self, words: str) -> str:
        with self._lock:
            assert self._process.stdin is not None and self._process.stdout is not None
            print(words, file=self._process.stdin, flush=True)
            if not (answer := self._process.stdout.readline()):
                raise RuntimeError("the S3 server did not start; is moto[server] installed?")
            return answer.strip()

    def _end(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()


@cache
def _servers() -> _Servers:
    return _Servers()


@contextmanager
def s3_server() -> Iterator[str]:
    """Start an empty S3 server; yields its URL. Nothing of it is left afterwards. Skips the test in a plain install."""
    if not is_installed("boto3"):
        pytest.skip("a store on S3 needs more than the plain install")
    port, pid = _servers().ask("start").split()
    try:
        yield f"http://{HOST}:{port}"
    finally:
        _servers().ask(f"stop {pid}")


def make_bucket(url: str, bucket: str) -> None:
    with urlopen(Request(f"{url}/{bucket}", method="PUT"), timeout=60):
        pass


def set_environment(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    """Make ``url`` the S3 endpoint of this process, with credentials that are good nowhere else."""
    for name in FORGOTTEN:
        monkeypatch.delenv(name, raising=False)
    for name, value in {**ENVIRONMENT, "AWS_ENDPOINT_URL_S3": url}.items():
        monkeypatch.setenv(name, value)


class Kind(Enum):
    STATUS = auto()  # answers with a status and S3's XML, without asking the server
    RESET = auto()  # resets the connection, without asking the server
    LOST_ANSWER = auto()  # the server does it, but the connection is reset before the answer
    SHORT_BODY = auto()  # promises the whole body, sends half of it, closes
    FLIPPED_BODY = auto()  # one bit in the middle is another one
    STALL = auto()  # says nothing until the proxy is healed


@dataclass(frozen=True, slots=True)
class Fault:
    kind: Kind
    status: int = 0
    code: str = ""


@dataclass(slots=True)
class _Rule:
    fault: Fault
    method: str
    containing: str
    skip: int
    left: int


@dataclass(slots=True)
class Proxy:
    """Passes requests on, except those that a rule matches."""

    upstream: str
    url: str = ""
    requests: list[str] = field(default_factory=list)  # "METHOD /path?query", in order of arrival
    _rules: list[_Rule] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _healed: threading.Event = field(default_factory=threading.Event)

    def inject(
        self, fault: Fault, *, method: str, containing: str = "", times: int = 1_000_000, after: int = 0
    ) -> None:
        """Misbehave on ``times`` requests of that method whose target contains that text, after letting some pass."""
        with self._lock:
            self._rules.append(_Rule(fault, method, containing, after, times))

    def heal(self) -> None:
        """Forget all rules and requests, and let go of the stalled ones."""
        with self._lock:
            self._rules.clear()
            self.requests.clear()
            self._healed.set()
            self._healed = threading.Event()

    def fault_for(self, method: str, target: str) -> Fault | None:
        with self._lock:
            self.requests.append(f"{method} {target}")
            for rule in self._rules:
                if rule.left > 0 and rule.method == method and rule.containing in target:
                    if rule.skip:
                        rule.skip -= 1
                        continue
                    rule.left -= 1
                    return rule.fault
        return None

    def stall(self) -> None:
        self._healed.wait()


@contextmanager
def faulty_proxy(upstream: str) -> Iterator[Proxy]:
    proxy = Proxy(upstream)

    class Handler(_Handler):
        pass

    Handler.proxy = proxy
    with _Server((HOST, 0), Handler) as server:
        proxy.url = f"http://{HOST}:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield proxy
        finally:
            proxy.heal()
            server.shutdown()
            thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = False  # so that closing joins them

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that hang up in the middle are what this is for."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    proxy: Proxy

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self) -> None:
        self.close_connection = True
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        fault = self.proxy.fault_for(self.command, self.path)
        if fault is None:
            self._send(*self._ask(body))
        elif fault.kind is Kind.STATUS:
            xml = f"<?xml version='1.0'?><Error><Code>{fault.code}</Code><Message>injected</Message></Error>".encode()
            self._send(fault.status, [("Content-Type", "application/xml")], xml, len(xml))
        elif fault.kind is Kind.RESET:
            self._reset()
        elif fault.kind is Kind.LOST_ANSWER:
            self._ask(body)
            self._reset()
        elif fault.kind is Kind.SHORT_BODY:
            status, headers, content, length = self._ask(body)
            self._send(status, headers, content[: len(content) // 2], length)
        elif fault.kind is Kind.FLIPPED_BODY:
            status, headers, content, length = self._ask(body)
            middle = len(content) // 2
            self._send(status, headers, content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :], length)
        else:
            self.proxy.stall()

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _answer

    def _ask(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes, int]:
        connection = http.client.HTTPConnection(urlsplit(self.proxy.upstream).netloc)
        try:
            connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in {"connection", "expect", "content-length"}:
                    connection.putheader(name, value)
            connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(body)
            response = connection.getresponse()
            content = response.read()
            length = int(response.headers.get("Content-Length", len(content)))
            return response.status, response.getheaders(), content, length
        finally:
            connection.close()

    def _send(self, status: int, headers: list[tuple[str, str]], content: bytes, length: int) -> None:
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() not in {"connection", "content-length", "transfer-encoding"}:
                self.send_header(name, value)
        self.send_header("Content-Length", str(length))
        self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _reset(self) -> None:
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()


def _fork_servers() -> None:
    """The process of ``_Servers``: each line on standard input starts a server or stops one."""
    from moto.moto_server.werkzeug_app import create_backend_app

    create_backend_app("s3")  # imports what the first request would
    end, parent_lives = os.pipe()
    for line in sys.stdin:
        word, _, number = line.strip().partition(" ")
        if word == "stop":
            os.kill(int(number), signal.SIGKILL)
            os.waitpid(int(number), 0)
            print("stopped", flush=True)
            continue
        with socket.create_server((HOST, 0), backlog=128) as listener:
            if (pid := os.fork()) == 0:
                os.close(parent_lives)
                _serve(listener, end)
            print(listener.getsockname()[1], pid, flush=True)


def _serve(listener: socket.socket, end: int) -> None:
    """A server's own process: answer until the process that forked it ends."""
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    app = DomainDispatcherApplication(create_backend_app)
    one_at_a_time = threading.Lock()

    def serialised(environ: Any, start_response: Any) -> Any:
        with one_at_a_time:
            return app(environ, start_response)

    class Quiet(WSGIRequestHandler):
        def log_request(self, *args: object) -> None:
            pass

    port = listener.getsockname()[1]
    server = make_server(HOST, port, serialised, threaded=True, request_handler=Quiet, fd=listener.fileno())
    threading.Thread(target=server.serve_forever, daemon=True).start()
    os.read(end, 1)
    os._exit(0)  # nothing to save


if __name__ == "__main__":
    _fork_servers()
