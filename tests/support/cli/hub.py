"""A hub on the loopback interface that speaks enough of the Hugging Face hub's HTTP for the real client.

Model info, file trees and files with ETag and commit; private and gated models; connections that are cut short.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest


@dataclass
class HubModel:
    files: dict[str, bytes]
    revisions: dict[str, str] = field(default_factory=lambda: {"main": "a" * 40})  # name → commit
    token: str | None = None  # without which it does not exist
    is_gated: bool = False

    @classmethod
    def of(cls, directory: Path, **facts: Any) -> HubModel:
        files = {path.name: path.read_bytes() for path in sorted(directory.iterdir())}
        return cls(files, **facts)


@dataclass
class Hub:
    models: dict[str, HubModel] = field(default_factory=dict)
    url: str = ""
    asked: list[str] = field(default_factory=list)  # method and path of each request
    answers: dict[str, object] = field(default_factory=dict)  # instead of the right ones: "" is info, "tree" files
    cut_after: int | None = None  # bytes of a file, after which its connection is cut, once

    @property
    def downloads(self) -> list[str]:
        """Names of the files that were sent."""
        return [line.rpartition("/")[2] for line in self.asked if line.startswith("GET") and "/resolve/" in line]

    def use(self, monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
        """Have the client in this process use this hub and this cache."""
        from huggingface_hub import constants

        template = f"{self.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr(constants, "ENDPOINT", self.url)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)  # made of the other at import
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.delenv("HF_TOKEN", raising=False)

    def environment(self, home: Path) -> dict[str, str]:
        """For a program that is to use this hub."""
        return {"HF_ENDPOINT": self.url, "HF_HOME": str(home), "HF_HUB_OFFLINE": "0", "NO_PROXY": "127.0.0.1"}


@contextmanager
def loopback_hub() -> Iterator[Hub]:
    hub = Hub()

    class Handler(_HubHandler):
        served = hub

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        hub.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield hub
        finally:
            server.shutdown()
            thread.join()


class _HubHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    served: Hub

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.served.asked.append(f"{self.command} {path}")
        for name, model in self.served.models.items():
            if path.startswith((f"/api/models/{name}", f"/{name}/resolve/")):
                self._answer_for(name, model, path)
                return
        self._refuse(HTTPStatus.NOT_FOUND, "RepoNotFound")

    def _answer_for(self, name: str, model: HubModel, path: str) -> None:
        if model.token is not None and self.headers.get("Authorization") != f"Bearer {model.token}":
            self._refuse(*((403, "GatedRepo") if model.is_gated else (401, "RepoNotFound")))
            return
        rest = path.removeprefix(f"/api/models/{name}").removeprefix(f"/{name}").strip("/").split("/", 2)
        revision = rest[1] if len(rest) > 1 else "main"
        commit = model.revisions.get(revision, revision)
        if commit not in model.revisions.values():
            self._refuse(HTTPStatus.NOT_FOUND, "RevisionNotFound")
        elif rest[0] == "resolve":
            self._send_file(model.files.get(rest[2]), commit)
        elif rest[0] in self.served.answers or (rest[0] == "revision" and "" in self.served.answers):
            self._send_json(self.served.answers.get(rest[0], self.served.answers.get("")))
        elif rest[0] == "tree":
            files = sorted(model.files.items())
            self._send_json([{"type": "file", "path": at, "size": len(data), "oid": _oid(data)} for at, data in files])
        else:
            files = sorted(model.files.items())
            siblings = [{"rfilename": at, "size": len(data), "blobId": _oid(data)} for at, data in files]
            self._send_json({"id": name, "modelId": name, "sha": commit, "siblings": siblings, "private": False})

    def _send_json(self, document: object) -> None:
        self._send(json.dumps(document).encode(), {"Content-Type": "application/json"})

    def _send_file(self, content: bytes | None, commit: str) -> None:
        if content is None:
            self._refuse(HTTPStatus.NOT_FOUND, "EntryNotFound")
            return
        start = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")[0])
        self._send(
            content[start:],
            {"ETag": f'"{_oid(content)}"', "X-Repo-Commit": commit, "Content-Type": "application/octet-stream"},
            status=206 if "Range" in self.headers else 200,
        )

    def _send(self, body: bytes, headers: dict[str, str], *, status: int = 200) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        cut = self.served.cut_after
        if cut is not None and len(body) > cut:
            self.served.cut_after = None
            self.wfile.write(body[:cut])
            self.close_connection = True
            return
        self.wfile.write(body)

    def _refuse(self, status: int, code: str) -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()


def _oid(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
