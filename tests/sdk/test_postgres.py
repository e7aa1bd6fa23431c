"""A server whose catalog is on PostgreSQL, and what becomes of its clients when that goes away."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tinker
from tinker import types

from faults.crashes import used
from sdk.checkpoints import listed
from sdk.making import ADAM, batch, create, rest_client, train
from support.live import SERVER_PYTHON, LiveServer
from support.postgres import PASSWORD, PostgresServer, stoppable_postgres

Connect = Callable[..., tinker.ServiceClient]
TERMINATE = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'chockstone'"


@pytest.fixture
def postgres() -> PostgresServer:
    """One that may be stopped."""
    return stoppable_postgres()


@pytest.fixture
def serve(models: dict[str, Path], postgres: PostgresServer, tmp_path: Path) -> Iterator[Callable[..., LiveServer]]:
    """Starts servers; stopped after the test, and none of them has said the password."""
    servers: list[LiveServer] = []

    def start(name: str = "server", *flags: str, database: str | None = None) -> LiveServer:
        url = database or postgres.create_database()
        servers.append(LiveServer(models, tmp_path / name, *flags, database=url))
        servers[-1].start()
        return servers[-1]

    yield start
    for server in servers:
        server.__exit__(None, None, None)
        assert not any(secret in server.log() for secret in (PASSWORD, "s3cret")), server.log()


def chockstone(server: LiveServer, *words: str, code: int = 0) -> str:
    ran = subprocess.run(
        [SERVER_PYTHON, "-m", "chockstone.cli", *words], env=server.env(), capture_output=True, text=True, timeout=90
    )
    assert ran.returncode == code, ran.stdout + ran.stderr
    assert "s3cret" not in ran.stdout + ran.stderr
    return ran.stdout + ran.stderr


def test_training_goes_on_while_the_database_is_stopped_and_started_again(
    serve: Callable[..., LiveServer], postgres: PostgresServer, connect: Connect
) -> None:
    server = serve()
    pid = server.pid
    service = connect(server)
    run, undisturbed = create(service), create(service)
    expected = train(undisturbed, 6)
    first = run.save_state("first").result().path
    heard = train(run, 2)
    postgres.stop(signal.SIGQUIT)

    heard += train(run, 2, start=2)  # what is in memory and in the journal needs no catalog
    saving = run.save_state("second")
    made: list[Any] = []
    making = threading.Thread(target=lambda: made.append(create(service)))
    making.start()  # a request of the client's, which it repeats
    time.sleep(7)  # longer than a request waits by itself
    with server.http() as http:
        refused = http.get("training_runs")
    assert (refused.status_code, refused.headers["Retry-After"]) == (503, "2")
    assert not made
    postgres.start()

    second = saving.result(timeout=60).path
    making.join(60)
    assert made
    assert heard + train(run, 2, start=4) == expected
    assert listed(rest_client(server), run.model_id) == {"weights/first", "weights/second"}
    assert train(service.create_training_client_from_state_with_optimizer(second), 2, start=4) == expected[4:]
    assert service.create_training_client_from_state(first)
    assert server.pid == pid and server.is_running()
    assert server.log().count("keys in the catalog cannot be read") == 1  # an outage is told, and not each request
    assert "request failed" not in server.log()


@pytest.mark.soak
def test_connections_that_are_cut_cost_a_client_nothing(
    serve: Callable[..., LiveServer], postgres: PostgresServer, connect: Connect
) -> None:
    server = serve()
    service = connect(server)
    run = create(service)
    for number in range(3):
        train(run, 1, start=number)
        postgres.sql(TERMINATE)
        run.save_state(f"s{number}").result()
        sampler = run.save_weights_and_get_sampling_client()
        postgres.sql(TERMINATE)
        prompt = types.ModelInput.from_ints([1, 2, 3])
        sampler.sample(prompt, num_samples=1, sampling_params=types.SamplingParams(max_tokens=2)).result()

    assert len(listed(rest_client(server), run.model_id)) == 3


@pytest.mark.soak
def test_a_killed_server_goes_on_from_postgresql(serve: Callable[..., LiveServer], connect: Connect) -> None:
    server = serve()
    service = connect(server)
    run, undisturbed = create(service), create(service)
    expected = train(undisturbed, 4)
    heard = train(run, 2)
    path = run.save_state("kept").result().path
    server.kill()

    server.start()

    assert heard + train(run, 2, start=2) == expected
    assert train(service.create_training_client_from_state_with_optimizer(path), 2, start=2) == expected[2:]
    tokens = [sum(datum.model_input.length for datum in batch(number)) for number in range(4)]
    assert used(server, [run.model_id]) == {"training": 2 * sum(tokens) + sum(tokens[2:]), "checkpoint": 1}


@pytest.mark.soak
def test_a_second_engine_is_kept_off_the_catalog(
    serve: Callable[..., LiveServer], models: dict[str, Path], tmp_path: Path
) -> None:
    server = serve("first")
    second = LiveServer(models, tmp_path / "second", database=server.database)

    process = second.launch()
    assert process.wait(60) == 1
    assert "is in use by 'chockstone on" in second.log() and "one engine at a time" in second.log()

    server.stop()
    process = second.launch()
    assert process.wait(60) == 1
    assert f"belongs to the data directory '{server.data}'" in second.log()
    assert "s3cret" not in second.log()


@pytest.mark.soak
def test_commands_find_the_catalog_where_the_server_has_it(serve: Callable[..., LiveServer]) -> None:
    server = serve()
    key = chockstone(server, "keys", "create", "ann").splitlines()[0]

    deadline = time.monotonic() + 30
    while (status := server.http(key).get("training_runs").status_code) == 401:
        assert time.monotonic() < deadline
        time.sleep(0.2)

    assert status == 200
    assert json.loads(chockstone(server, "keys", "ls", "--json"))["keys"][0]["user_id"] == "ann"
    assert not (server.data / "catalog.sqlite3").exists()
    assert "healthy" in chockstone(server, "doctor", "--data", str(server.data))
    assert "a server uses the data directory" in chockstone(
        server, "doctor", "--data", str(server.data), "--fix", code=3
    )


@pytest.mark.soak
def test_a_catalog_moves_from_sqlite_to_postgresql_by_a_rebuild(
    models: dict[str, Path], postgres: PostgresServer, tmp_path: Path
) -> None:
    home = tmp_path / "server"
    with LiveServer(models, home) as before, tinker.ServiceClient(base_url=before.url, api_key=before.key) as service:
        run = create(service)
        train(run, 2)
        path = run.save_state("kept", user_metadata={"note": "held"}).result().path
        expected = train(run, 2, start=2)
    after = LiveServer(models, home, database=postgres.create_database())

    told = chockstone(after, "doctor", "--data", str(after.data), "--rebuild")
    assert "Keys of users, policies" in told
    with after, tinker.ServiceClient(base_url=after.url, api_key=after.key) as service:
        assert listed(rest_client(after), run.model_id) == {"weights/kept"}
        resumed = service.create_training_client_from_state_with_optimizer(path)
        assert train(resumed, 2, start=2) == expected


@pytest.mark.soak
def test_a_server_whose_catalog_was_taken_by_another_ends_at_once(
    serve: Callable[..., LiveServer], postgres: PostgresServer
) -> None:
    server = serve()
    assert server.database is not None
    thief = threading.Thread(
        target=postgres.sql,
        args=(
            f"{TERMINATE} AND application_name LIKE 'chockstone on%'",
            "SELECT pg_advisory_lock(1667788643, hashtext('public'))",
            "SELECT pg_sleep(50)",
        ),
        kwargs={"database": server.database},
    )

    thief.start()

    assert server.wait(60) == 1
    assert "the server ends at once, and nothing acknowledged is lost: the catalog is in use by 'psql'" in server.log()
    thief.join()
    server.start()


@pytest.mark.soak
def test_a_database_that_comes_and_goes_all_the_time_loses_nothing(
    serve: Callable[..., LiveServer], postgres: PostgresServer, connect: Connect
) -> None:
    server = serve()
    service = connect(server)
    run, undisturbed = create(service), create(service)
    expected = train(undisturbed, 20)
    is_over = threading.Event()

    heard: list[Any] = []
    saved: list[str] = []

    def work() -> None:
        for number in range(20):
            passed = run.forward_backward(batch(number), "cross_entropy")
            run.optim_step(ADAM).result()
            heard.append(passed.result().metrics["loss:sum"])
            saved.append(run.save_state(f"s{number}").result().path)
        is_over.set()

    worker = threading.Thread(target=work)
    worker.start()
    turns = 0
    while not is_over.wait(1.0):
        assert worker.is_alive(), server.log()
        postgres.stop(signal.SIGQUIT if turns % 2 else signal.SIGINT)
        is_over.wait(0.5 + turns % 3)
        postgres.start()
        turns += 1
    worker.join()

    assert turns
    assert heard == [loss for loss, _ in expected]
    assert listed(rest_client(server), run.model_id) == {f"weights/s{number}" for number in range(20)}
    for path in saved:
        assert service.create_training_client_from_state(path)
