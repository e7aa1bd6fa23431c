"""The probe: small requests at a steady pace from a process of its own, each with the moment it was sent.

Imports nothing that computes, so that it adds little to what it measures.
"""

from __future__ import annotations

import http.client
import socket
import threading
import time
from urllib.parse import urlsplit

PATHS = ("/api/v1/healthz", "/api/v1/get_server_capabilities")
INTERVAL_SECONDS = 0.005

Answer = tuple[float, float]  # when it was sent, on the system's monotonic clock, and seconds until its answer


class Probe:
    def __init__(self, url: str, key: str) -> None:
        address = urlsplit(url)
        assert address.hostname is not None
        self._connection = http.client.HTTPConnection(address.hostname, address.port, timeout=60)
        self._connection.connect()
        self._connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._headers = {"X-API-Key": key}
        self._answers: list[Answer] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._ask, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> list[Answer]:
        self._over.set()
        self._thread.join()
        return self._answers

    def _ask(self) -> None:
        number = 0
        while not self._over.is_set():
            sent = time.monotonic()
            self._connection.request("GET", PATHS[number % len(PATHS)], headers=self._headers)
            response = self._connection.getresponse()
            response.read()
            taken = time.monotonic() - sent
            if response.status != 200:
                raise RuntimeError(f"{PATHS[number % len(PATHS)]!r} answered {response.status}")
            self._answers.append((sent, taken))
            number += 1
            time.sleep(max(0.0, INTERVAL_SECONDS - taken))
