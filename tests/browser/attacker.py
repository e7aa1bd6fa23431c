"""A web site of an attacker, on another port of this machine: another origin, and the same site for cookies."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class AttackerSite:
    """``serve(html)`` returns the URL of a page."""

    def __init__(self, server: ThreadingHTTPServer, pages: dict[str, str]) -> None:
        self._server = server
        self._pages = pages

    def serve(self, html: str) -> str:
        path = f"/{len(self._pages)}"
        self._pages[path] = f'<!doctype html><link rel="icon" href="data:,"><title>Prizes</title>{html}'
        return f"http://127.0.0.1:{self._server.server_port}{path}"


@contextmanager
def attacker_site() -> Iterator[AttackerSite]:
    pages: dict[str, str] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            text = pages.get(self.path)
            self.send_response(404 if text is None else 200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.end_headers()
            self.wfile.write((text or "").encode())

        def log_message(self, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield AttackerSite(server, pages)
        finally:
            server.shutdown()
            thread.join()
