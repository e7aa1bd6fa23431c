"""Sessions through the SDK: from a client's first call to its last, and what is refused after that."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from typing import Any

import pytest
import tinker
from tinker import types

from sdk.making import MODEL, create, rest_client
from support.live import LiveServer

Connect = Callable[..., tinker.ServiceClient]


@pytest.fixture
def search(rest: tinker.RestClient) -> Callable[..., list[Any]]:
    def find(**query: Any) -> list[Any]:
        with pytest.warns(tinker.ExperimentalWarning):
            return rest.search_sessions(types.SessionSearchRequest(**query)).result().sessions

    return find


def test_a_session_is_listed_newest_first(live: LiveServer, connect: Connect, rest: tinker.RestClient) -> None:
    ids = [connect(live).holder.get_session_id() for _ in range(3)]

    listed = rest.list_sessions(limit=3).result().sessions
    rest_of_them = rest.list_sessions(limit=1, offset=1).result().sessions

    assert listed == ids[::-1]
    assert rest_of_them == [ids[1]]


def test_a_session_knows_its_runs_samplers_and_words(
    live: LiveServer, connect: Connect, rest: tinker.RestClient
) -> None:
    service = connect(live, user_metadata={"team": "north"}, display_name="Nightly sweep")
    run = create(service)
    sampler = service.create_sampling_client(base_model=MODEL)

    session = rest.get_session(service.holder.get_session_id()).result()

    assert session.training_run_ids == [run.model_id]
    assert session.sampler_ids == [sampler._sampling_session_id]
    assert session.user_metadata == {"team": "north"}
    assert session.display_name == "Nightly sweep"


def test_search_finds_by_name_metadata_and_status(
    live: LiveServer, connect: Connect, search: Callable[..., list[Any]]
) -> None:
    mark = uuid.uuid4().hex
    one = connect(live, display_name="Alpha run", user_metadata={"mark": mark})
    two = connect(live, display_name="Beta run", user_metadata={"mark": mark})
    first, second = one.holder.get_session_id(), two.holder.get_session_id()
    two.close("interrupted", detail="lunch").result()
    own = {"mark": mark}

    assert [found.session_id for found in search(user_metadata=own)] == [second, first]
    assert [found.session_id for found in search(user_metadata=own, display_name="RUN alpha")] == [first]
    assert [found.session_id for found in search(session_id=first)] == [first]
    assert [found.session_id for found in search(user_metadata=own, statuses=[{"type": "active"}])] == [first]
    (finished,) = search(user_metadata=own, statuses=[{"type": "client_finished", "reasons": ["interrupted"]}])
    assert finished.session_id == second
    assert finished.status.type == "client_finished"
    assert (finished.status.reason.type, finished.status.detail) == ("interrupted", "lunch")


@pytest.mark.filterwarnings("ignore::tinker.ExperimentalWarning")
def test_search_pages_through_everything_once(live: LiveServer, connect: Connect, rest: tinker.RestClient) -> None:
    mark = uuid.uuid4().hex
    ids = [connect(live, user_metadata={"mark": mark}).holder.get_session_id() for _ in range(5)]
    request = types.SessionSearchRequest(user_metadata={"mark": mark}, limit=2)

    found = []
    while True:
        page = rest.search_sessions(request).result()
        found.append([session.session_id for session in page.sessions])
        if page.next_cursor is None:
            break
        request = request.model_copy(update={"cursor": page.next_cursor})

    assert [session_id for page in found for session_id in page] == ids[::-1]
    assert max(map(len, found)) == 2


def test_a_session_moves_to_a_project(live: LiveServer, connect: Connect, search: Callable[..., list[Any]]) -> None:
    project, elsewhere = uuid.uuid4().hex, uuid.uuid4().hex
    service = connect(live, project_id=project)
    session_id = service.holder.get_session_id()
    assert [found.session_id for found in search(project_ids=[project])] == [session_id]

    rest_client(live).assign_session_project(session_id, elsewhere).result()

    assert search(project_ids=[project]) == []
    (found,) = search(project_ids=[elsewhere])
    assert (found.session_id, found.project_id) == (session_id, elsewhere)


def test_an_unknown_session_is_not_found(rest: tinker.RestClient) -> None:
    with pytest.raises(tinker.NotFoundError):
        rest.get_session("no-such-session").result()
    with pytest.raises(tinker.NotFoundError):
        rest.assign_session_project("no-such-session", "p").result()


def test_a_retried_creation_makes_one_session(live: LiveServer) -> None:
    key = {"X-Idempotency-Key": f"stainless-python-retry-{uuid.uuid4()}"}
    body = {"tags": [], "user_metadata": {}, "sdk_version": "0.36.0", "type": "create_session"}

    with live.http() as http:
        first = http.post("create_session", json=body, headers=key).json()
        again = http.post("create_session", json=body, headers=key).json()
        other = http.post("create_session", json=body).json()

    assert again == first
    assert other["session_id"] != first["session_id"]


def test_a_heartbeat_is_answered_until_the_session_is_finished(live: LiveServer, connect: Connect) -> None:
    service = connect(live)
    beat = {"session_id": service.holder.get_session_id(), "type": "session_heartbeat"}

    with live.http() as http:
        before = http.post("session_heartbeat", json=beat)
        service.close("success").result()
        after = http.post("session_heartbeat", json=beat)

    assert (before.status_code, before.json().get("type", "session_heartbeat")) == (200, "session_heartbeat")
    assert after.status_code == 410
    assert after.json()["detail"]


def test_the_first_reason_stands(live: LiveServer, connect: Connect, search: Callable[..., list[Any]]) -> None:
    service = connect(live)
    session_id = service.holder.get_session_id()
    service.close("success").result()

    with live.http() as http:
        again = http.post(f"sessions/{session_id}/finish", json={"reason": {"type": "errored"}, "detail": None})

    assert again.is_success
    assert search(session_id=session_id)[0].status.reason.type == "success"


def test_leaving_the_client_by_an_error_says_so(live: LiveServer, search: Callable[..., list[Any]]) -> None:
    with pytest.raises(ZeroDivisionError):
        with tinker.ServiceClient(base_url=live.url, api_key=live.key) as service:
            session_id = service.holder.get_session_id()
            raise ZeroDivisionError

    assert search(session_id=session_id)[0].status.reason.type == "errored"


def test_a_finished_session_takes_no_more_work(live: LiveServer, connect: Connect) -> None:
    service = connect(live)
    session_id = service.holder.get_session_id()
    run_id = create(service).model_id
    sampler_id = service.create_sampling_client(base_model=MODEL)._sampling_session_id
    service.close("success").result()
    prompt = {"chunks": [{"type": "encoded_text", "tokens": [1, 2]}]}
    submissions = {
        "create_model": {"session_id": session_id, "model_seq_id": 9, "base_model": MODEL},
        "create_sampling_session": {"session_id": session_id, "sampling_session_seq_id": 9, "base_model": MODEL},
        "optim_step": {"model_id": run_id, "seq_id": 9, "adam_params": {}},
        "save_weights": {"model_id": run_id, "seq_id": 10, "path": "late"},
        "asample": {
            "sampling_session_id": sampler_id,
            "seq_id": 9,
            "num_samples": 1,
            "prompt": prompt,
            "sampling_params": {"max_tokens": 1},
        },
    }

    with live.http() as http:
        answers = {path: http.post(path, json=body) for path, body in submissions.items()}

    assert {path: answer.status_code for path, answer in answers.items()} == dict.fromkeys(submissions, 410)
    assert all("finished" in answer.json()["detail"] for answer in answers.values())


def test_what_was_submitted_before_the_end_is_still_done(live: LiveServer, connect: Connect) -> None:
    service = connect(live)
    run = create(service)
    with live.http() as http:
        body = {"model_id": run.model_id, "seq_id": 1, "path": "last-words"}
        request_id = http.post("save_weights", json=body).json()["request_id"]
        service.close("success").result()

        answer = http.post("retrieve_future", json={"request_id": request_id}).json()

    assert answer["path"] == f"tinker://{run.model_id}/weights/last-words"


def test_finishing_frees_the_runs(live: LiveServer, connect: Connect) -> None:
    service = connect(live)
    runs = [create(service), create(service)]
    service.close("success").result()

    deadline = time.monotonic() + 20
    while not all(f"run unloaded run={run.model_id}" in live.log() for run in runs):
        assert time.monotonic() < deadline
        time.sleep(0.02)
