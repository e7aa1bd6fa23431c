from __future__ import annotations

from collections.abc import Callable, Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Final

import pytest
import tinker

from sdk.making import rest_client
from support.live import KEY, LiveServer

CLOSE_SECONDS: Final = 15.0


@pytest.fixture(scope="session")
def live(models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """The server that most tests share; each makes a session of its own."""
    with LiveServer(models, tmp_path_factory.mktemp("live")) as server:
        yield server


@pytest.fixture
def start_server(models: dict[str, Path], tmp_path: Path) -> Iterator[Callable[..., LiveServer]]:
    """Starts a server with the flags it is given; stopped after the test unless it has ended."""
    servers: list[LiveServer] = []

    def start(*flags: str, key: str = KEY, is_executed: bool = False) -> LiveServer:
        server = LiveServer(models, tmp_path / f"server-{len(servers)}", *flags, key=key, is_executed=is_executed)
        servers.append(server)
        server.start()
        return server

    yield start
    for server in servers:
        server.__exit__(None, None, None)


@pytest.fixture
def connect() -> Iterator[Callable[..., tinker.ServiceClient]]:
    """Makes clients of a server; closed after the test."""
    clients: list[tuple[LiveServer, tinker.ServiceClient]] = []

    def make(server: LiveServer, *, key: str | None = None, **options: object) -> tinker.ServiceClient:
        client = tinker.ServiceClient(base_url=server.url, api_key=key or server.key, **options)
        clients.append((server, client))
        return client

    yield make
    for server, client in clients:
        _close(server, client)


def _close(server: LiveServer, client: tinker.ServiceClient) -> None:
    if hasattr(client, "close"):
        _close_in_time(server, client)
        return
    # TODO: drop once SDKs older than 0.30 are gone; they leave their sessions open
    with server.http(getattr(client.holder, "_api_key", None)) as http:
        body = {"reason": {"type": "success"}, "detail": None}
        http.post(f"sessions/{client.holder.get_session_id()}/finish", json=body)
    client.holder.close()


def _close_in_time(server: LiveServer, client: tinker.ServiceClient) -> None:
    """SDK 0.36 cancels its heartbeat and waits for it; one that is just being sent may lose the cancellation, and then
    the wait has no end. Closed is what the server says is closed."""
    try:
        client.close("success").result(timeout=CLOSE_SECONDS)
    except TimeoutError:
        with server.http(getattr(client.holder, "_api_key", None)) as http:
            beat = http.post("session_heartbeat", json={"session_id": client.holder.get_session_id()})
        if beat.status_code != HTTPStatus.GONE:
            raise


@pytest.fixture
def service(live: LiveServer, connect: Callable[..., tinker.ServiceClient]) -> tinker.ServiceClient:
    return connect(live)


@pytest.fixture
def rest(live: LiveServer) -> tinker.RestClient:
    return rest_client(live)
