"""The sendfile loop: the baseline of downloads, the least code that serves a file over HTTP."""

from __future__ import annotations

import os
import socket
import threading


class SendfileLoop:
    """Answers every request on its port with the file."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._listening = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._serve, daemon=True).start()

    def port(self) -> int:
        port: int = self._listening.getsockname()[1]
        return port

    def _serve(self) -> None:
        while True:
            client, _ = self._listening.accept()
            with client, open(self._path, "rb") as file:
                client.recv(65536)
                size = os.fstat(file.fileno()).st_size
                client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % size)
                sent = 0
                while sent < size:
                    sent += os.sendfile(client.fileno(), file.fileno(), sent, size - sent)
