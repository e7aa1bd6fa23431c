"""Two users of one server: each has a key, and nothing of the other's can be seen or touched."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
import tinker

from sdk.making import MODEL, create, rest_client
from support.live import LiveServer

Connect = Callable[..., tinker.ServiceClient]
ANN, BOB = "tml-the-key-of-ann", "tml-the-key-of-bob"
KEYS = ("--key", f"ann={ANN}", "--key", f"bob={BOB}")


@pytest.fixture(scope="module")
def shared(models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with LiveServer(models, tmp_path_factory.mktemp("shared"), *KEYS, key=ANN) as server:
        yield server


@pytest.fixture
def bob(shared: LiveServer) -> Iterator[httpx.Client]:
    with shared.http(BOB) as http:
        yield http


def test_each_user_sees_their_own_runs(shared: LiveServer, connect: Connect) -> None:
    ids = {key: create(connect(shared, key=key)).model_id for key in (ANN, BOB)}

    for key, user in ((ANN, "ann"), (BOB, "bob")):
        rest = rest_client(shared, key)
        listed = rest.list_training_runs(limit=100).result().training_runs
        assert {run.model_owner for run in listed} == {user}
        assert ids[key] in {run.training_run_id for run in listed}
        assert rest.whoami().result().user_urn == user


def test_the_things_of_others_are_not_there(shared: LiveServer, connect: Connect, bob: httpx.Client) -> None:
    """As far as Bob can tell: the same 404 as for what never was."""
    service = connect(shared, key=ANN)
    session_id = service.holder.get_session_id()
    run = create(service)
    run_id = run.model_id
    path = run.save_state("private").result().path
    sampler_id = service.create_sampling_client(base_model=MODEL)._sampling_session_id
    with shared.http(ANN) as http:
        request_id = http.post("optim_step", json={"model_id": run_id, "seq_id": 90, "adam_params": {}}).json()[
            "request_id"
        ]
    own_session = connect(shared, key=BOB).holder.get_session_id()

    answers = {
        "run": bob.get(f"training_runs/{run_id}"),
        "info": bob.post("get_info", json={"model_id": run_id}),
        "step": bob.post("optim_step", json={"model_id": run_id, "seq_id": 91, "adam_params": {}}),
        "save": bob.post("save_weights", json={"model_id": run_id, "seq_id": 91, "path": "stolen"}),
        "unload": bob.post("unload_model", json={"model_id": run_id}),
        "session": bob.get(f"sessions/{session_id}"),
        "heartbeat": bob.post("session_heartbeat", json={"session_id": session_id}),
        "finish": bob.post(f"sessions/{session_id}/finish", json={"reason": {"type": "errored"}, "detail": None}),
        "project": bob.put(f"sessions/{session_id}/project", json={"project_id": "mine"}),
        "model in session": bob.post(
            "create_model", json={"session_id": session_id, "model_seq_id": 5, "base_model": MODEL}
        ),
        "weights": bob.post("weights_info", json={"tinker_path": path}),
        "load": bob.post(
            "load_weights", json={"session_id": own_session, "model_seq_id": 0, "path": path, "optimizer": True}
        ),
        "sampler of path": bob.post(
            "create_sampling_session",
            json={"session_id": own_session, "sampling_session_seq_id": 0, "model_path": path},
        ),
        "sampler": bob.get(f"samplers/{sampler_id}"),
        "join": bob.post("join_sampling_session", json={"sampling_session_id": sampler_id}),
        "sample": bob.post(
            "asample",
            json={
                "sampling_session_id": sampler_id,
                "seq_id": 0,
                "num_samples": 1,
                "prompt": {"chunks": [{"type": "encoded_text", "tokens": [1]}]},
                "sampling_params": {"max_tokens": 1},
            },
        ),
        "future": bob.post("retrieve_future", json={"request_id": request_id}),
    }

    assert {what: answer.status_code for what, answer in answers.items()} == dict.fromkeys(answers, 404)
    assert run.optim_step(tinker.AdamParams()).result() is not None  # untouched by all that


def test_an_owner_can_lend_a_checkpoint(shared: LiveServer, connect: Connect) -> None:
    run = create(connect(shared, key=ANN), rank=2)
    path = run.save_state("lent").result().path
    borrower = connect(shared, key=BOB)

    borrowed = borrower.create_training_client_from_state(path, weights_access_token=ANN)

    assert borrowed.get_info().lora_rank == 2
    with pytest.raises(tinker.NotFoundError):
        borrower.create_training_client_from_state(path)
    with pytest.raises(tinker.PermissionDeniedError):
        borrower.create_training_client_from_state(path, weights_access_token="tml-nobody")


@pytest.mark.parametrize("key", ["tml-wrong", "tml-", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhbm4ifQ.c2lnbmF0dXJl"])
def test_a_wrong_key_is_refused_at_once(shared: LiveServer, key: str) -> None:
    with pytest.raises(tinker.AuthenticationError):
        tinker.ServiceClient(base_url=shared.url, api_key=key).get_server_capabilities()


def test_no_key_is_refused(shared: LiveServer) -> None:
    answer = httpx.get(f"{shared.url}/api/v1/training_runs")

    assert answer.status_code == 401
    assert "TINKER_API_KEY" in answer.json()["detail"]


def test_a_token_of_another_server_is_refused(shared: LiveServer, live: LiveServer) -> None:
    with live.http() as http:
        token = http.post("auth/token", json={}).json()["jwt"]

    with shared.http(token) as http:
        assert http.get("training_runs").status_code == 401


def test_without_keys_any_key_is_the_local_user(live: LiveServer) -> None:
    for key in ("tml-a", "tml-b"):
        assert rest_client(live, key).whoami().result().user_urn == "local"


def test_a_server_for_everyone_needs_keys(models: dict[str, Path], tmp_path: Path) -> None:
    server = LiveServer(models, tmp_path, "--host", "0.0.0.0")

    code = server.launch().wait(30)

    assert code == 2
    assert "key" in server.log()
    assert not (tmp_path / "data").exists()


def test_a_server_for_everyone_starts_with_keys(start_server: Callable[..., LiveServer]) -> None:
    server = start_server("--host", "0.0.0.0", *KEYS, key=ANN)

    with server.http() as http:
        assert http.get("training_runs").status_code == 200
    with server.http("tml-local") as http:
        assert http.get("training_runs").status_code == 401
    assert ANN not in server.log()
    server.kill()
