from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import tinker

from live import KEY, LiveServer, make_models
from sdk.making import rest_client


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Name → directory of a small model of each architecture."""
    return make_models(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="session")
def live(models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """The server that most tests share; each makes a session of its own."""
    with LiveServer(models, tmp_path_factory.mktemp("live")) as server:
        yield server


@pytest.fixture
def start_server(models: dict[str, Path], tmp_path: Path) -> Iterator[Callable[..., LiveServer]]:
    """Starts a server with the flags it is given; stopped after the test unless it has ended."""
    servers: list[LiveServer] = []

    def start(*flags: str, key: str = KEY) -> LiveServer:
        server = LiveServer(models, tmp_path / f"server-{len(servers)}", *flags, key=key)
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
        client.close("success").result()
        return
    # TODO: drop once SDKs older than 0.30 are gone; they leave their sessions open
    with server.http(client.holder._api_key if hasattr(client.holder, "_api_key") else None) as http:
        body = {"reason": {"type": "success"}, "detail": None}
        http.post(f"sessions/{client.holder.get_session_id()}/finish", json=body)
    client.holder.close()


@pytest.fixture
def service(live: LiveServer, connect: Callable[..., tinker.ServiceClient]) -> tinker.ServiceClient:
    return connect(live)


@pytest.fixture
def rest(live: LiveServer) -> tinker.RestClient:
    return rest_client(live)
