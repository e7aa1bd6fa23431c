from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from chockstone.checkpoints.errors import ImportRefused
from chockstone.cli.importing.sending import import_weights
from chockstone.cli.remote.client import ServerRefused, ServerUnreachable, connect
from support.adapters import adapter_files

RECEIPT = {
    "lora_B_multiplied_by": 0.5,
    "untrained_layers": ["a", "b", "c", "d"],
    "ignored_options": {"lora_dropout": 0.1},
    "lacks": "moments",
}


class Received:
    """What a server got, and how it answers."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, bytes, str | None]] = []
        self.put_status = 200
        self.urls: dict[str, str] | None = None


@contextmanager
def serving(received: Received) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            self._take()
            self._answer(received.put_status, {"detail": "too large"} if received.put_status >= 400 else {})

        def do_POST(self) -> None:
            self._take()
            if self.path.endswith("start"):
                urls = {name: f"{url}/put/{name}" for name in adapter_files()}
                self._answer(200, {"upload_id": "u", "urls": received.urls or urls, "expires": "2030-01-01T00:00:00Z"})
            else:
                self._answer(200, {"tinker_path": "tinker://r/weights/imported", "receipt": RECEIPT})

        def _take(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            received.requests.append((self.command, self.path, body, self.headers["X-API-Key"]))

        def _answer(self, status: int, document: dict[str, Any]) -> None:
            content = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield url
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    directory = tmp_path / "adapter"
    directory.mkdir()
    for name, content in adapter_files().items():
        (directory / name).write_bytes(content)
    return directory


def run(url: str, directory: Path, **facts: Any) -> None:
    ordinary = {"name": None, "project_id": None, "alpha": None, "dry_run": False, "as_json": True}
    import_weights(connect(url, "tml-k"), directory, base_model="tiny", **{**ordinary, **facts})


def test_files_go_to_their_urls_without_the_key(adapter: Path, capsys: pytest.CaptureFixture[str]) -> None:
    received = Received()
    with serving(received) as url:
        run(url, adapter, name="start", project_id="p")

    (_, _, begun, key), *puts, (_, _, finished, _) = received.requests
    assert json.loads(begun) == {
        "base_model": "tiny",
        "lora_config": {"rank": 4, "train_attn": True, "train_mlp": True, "train_unembed": False},
        "destination_project_id": "p",
        "name": "start",
    }
    assert key == "tml-k"
    assert puts == [("PUT", f"/put/{name}", content, None) for name, content in adapter_files().items()]
    assert json.loads(finished) == {"upload_id": "u"}
    document = json.loads(capsys.readouterr().out)
    assert document["tinker_path"] == "tinker://r/weights/imported" and document["receipt"] == RECEIPT


def test_the_receipt_says_what_was_changed(adapter: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(Received()) as url:
        run(url, adapter, as_json=False)

    said = capsys.readouterr().out
    for words in ("PEFT", "multiplied by 0.5", "4 layers", "lora_dropout", "moments", "tinker://r/weights/imported"):
        assert words in said


def test_a_dry_run_sends_nothing(adapter: Path, capsys: pytest.CaptureFixture[str]) -> None:
    received = Received()
    with serving(received) as url:
        run(url, adapter, dry_run=True, as_json=False)

    assert received.requests == []
    assert "nothing was sent" in capsys.readouterr().out


@pytest.mark.parametrize(("status", "error"), [(413, ServerRefused), (500, ServerUnreachable)])
def test_a_refused_file_ends_the_import(adapter: Path, status: int, error: type[Exception]) -> None:
    received = Received()
    received.put_status = status
    with serving(received) as url, pytest.raises(error, match="too large"):
        run(url, adapter)

    assert not any(path.endswith("finish") for _, path, _, _ in received.requests)


@pytest.mark.parametrize(
    "urls", [{"other": "http://127.0.0.1:1/"}, dict.fromkeys(adapter_files(), "file:///etc/passwd")]
)
def test_strange_urls_are_not_followed(adapter: Path, urls: dict[str, str]) -> None:
    received = Received()
    received.urls = urls
    with serving(received) as url, pytest.raises(ServerUnreachable):
        run(url, adapter)


def test_a_directory_without_weights_asks_no_server(tmp_path: Path) -> None:
    with pytest.raises(ImportRefused):
        run("http://127.0.0.1:1", tmp_path)
