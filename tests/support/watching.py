"""A relay in front of a server, which can be closed and opened again on the same port, as a restarted server is."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from types import TracebackType
from urllib.parse import urlsplit


class Relay:
    def __init__(self, target: str) -> None:
        address = urlsplit(target)
        self._target = (address.hostname or "", address.port or 0)
        self._port = 0
        self._listener: socket.socket | None = None
        self._connections: set[socket.socket] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def __enter__(self) -> Relay:
        self.listen()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def listen(self) -> None:
        listener = socket.create_server(("127.0.0.1", self._port))
        self._port, self._listener = listener.getsockname()[1], listener
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

    def close(self) -> None:
        """Refuse new connections, and cut those that are open."""
        if self._listener is not None:
            self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            self._listener = None
        for connection in list(self._connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                threading.Thread(target=self._pass, args=(connection,), daemon=True).start()

    def _pass(self, client: socket.socket) -> None:
        with client, socket.create_connection(self._target) as server, contextlib.suppress(OSError):
            self._connections |= {client, server}
            ends = {client: server, server: client}
            while True:
                for ready in select.select(list(ends), [], [])[0]:
                    data = ready.recv(1 << 16)
                    if not data:
                        return
                    ends[ready].sendall(data)
        self._connections -= {client, server}
