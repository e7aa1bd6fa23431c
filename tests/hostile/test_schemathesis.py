"""Every operation of the OpenAPI document, with bodies that fit it and bodies that do not: none ends in a 5xx."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode

from hostile.strangers import Stranger, check_refusal, retrieve
from support.live import LiveServer

EXAMPLES = 3  # of each operation and each kind
SOAK_EXAMPLES = 150
MODES = [GenerationMode.POSITIVE, GenerationMode.NEGATIVE]
CLOSES = "POST /api/v1/keys"  # the first key would close the shared server, which has none
OPERATORS = re.compile(r"/api/v1/(server|runs|recoveries|samplers|keys|doctor|audit)(/.*)?")
TALKS = {
    *(f"POST /v1/{path}" for path in ("chat/completions", "completions", "responses")),
    *(f"POST /anthropic/v1/{path}" for path in ("messages", "messages/count_tokens")),
    *(f"{method} /v1/chat/completions/{{completion_id}}" for method in ("GET", "DELETE")),
    *(f"{method} /v1/responses/{{response_id}}" for method in ("GET", "DELETE")),
}
USERS = {"root": "tml-of-root-0123", "ann": "tml-of-ann-01234"}


@pytest.fixture
def real(live: LiveServer, http: httpx.Client) -> dict[str, str]:
    """Ids that lead somewhere, by the names of the fields that may hold them."""
    stranger = Stranger.meet(http)
    sampler = stranger.open_sampler()
    accepted = stranger.send(stranger.pass_message()).json()
    save = {"model_id": stranger.run_id, "seq_id": stranger.next_seq_id(), "path": "saved"}
    path = retrieve(http, http.post("save_weights", json=save).json()["request_id"]).json()["path"]
    archive = http.get(f"training_runs/{stranger.run_id}/checkpoints/weights/saved/archive").headers["location"]
    talk = {"model": "tiny-qwen3", "max_tokens": 1, "messages": [{"role": "user", "content": "Hi"}], "store": True}
    answer = http.post(f"{live.url}/v1/chat/completions", json=talk).json()["id"]
    respond = {"model": "tiny-qwen3", "max_output_tokens": 1, "input": "Hi", "store": True}
    response = http.post(f"{live.url}/v1/responses", json=respond).json()["id"]
    return {
        "completion_id": answer,
        "conversation_id": answer,
        "response_id": response,
        "session_id": stranger.session_id,
        "model_id": stranger.run_id,
        "run_id": stranger.run_id,
        "sampling_session_id": sampler,
        "request_id": accepted["request_id"],
        "base_model": "tiny-qwen3",
        "model": "tiny-qwen3",
        "tinker_path": path,
        "model_path": path,
        "source_path": path,
        "kind": "weights",
        "name": "saved",
        "scope": f"run:{stranger.run_id}",
        "token": archive.split("/")[-2],
    }


def lead_somewhere(given_body: Any, real: dict[str, str]) -> Any:
    """The body with ids that exist in place of made-up ones; without waiting for news that will not come."""
    if not isinstance(given_body, dict):
        return given_body
    body = {name: real.get(name, value) if isinstance(value, str) else value for name, value in given_body.items()}
    if isinstance(target := body.get("target"), dict):
        body["target"] = lead_somewhere(target, real)
        body["timeout"] = 0.0
    return body


@cache
def read_operations(document: str) -> list[Any]:
    """The operations of an OpenAPI document. Schemathesis keeps in them how it makes values, for the next test."""
    return [found.ok() for found in schemathesis.openapi.from_dict(json.loads(document)).get_all_operations()]


@dataclass(slots=True)
class Asked:
    """What was asked of a server, and how it answered."""

    operations: set[str] = field(default_factory=set)
    statuses: Counter[int] = field(default_factory=Counter)


def ask_everything(
    live: LiveServer,
    real: dict[str, str] | None,
    mode: GenerationMode,
    *,
    examples: int,
    derandomize: bool,
    is_asked: Callable[[Any], bool] = lambda operation: operation.label != CLOSES,
    key: str | None = None,
) -> Asked:
    """Send ``examples`` requests to each operation; fails at the first answer that no client should get."""
    operations = read_operations(httpx.get(f"{live.url}/openapi.json", trust_env=False).text)
    asked = Asked()

    def check(operation: Any) -> Callable[[], None]:
        ends_something = operation.path.endswith(("/finish", "/unload_model"))

        @settings(
            max_examples=examples,
            derandomize=derandomize,
            database=None,
            deadline=None,
            phases=[Phase.explicit, Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy(generation_mode=mode))
        def ask(case: Any) -> None:
            sendable = {name: value for name, value in (case.headers or {}).items() if isinstance(value, str)}
            case.headers = {**sendable, "X-API-Key": key or live.key}
            if real is not None and not ends_something:
                case.body = lead_somewhere(case.body, real)
                case.path_parameters = lead_somewhere(case.path_parameters, real)
            if "max_seconds" in (case.query or {}) or operation.path.endswith("/stream"):
                case.query = {**(case.query or {}), "max_seconds": 0}  # a stream of events ends at once
            answer = case.call(base_url=live.url, timeout=60)
            asked.operations.add(operation.label)
            asked.statuses[answer.status_code] += 1
            assert answer.status_code < 500, f"{case.as_curl_command()}\n{answer.status_code} {answer.text[:500]}"
            if answer.status_code >= 400:
                headers = {name: values[0] for name, values in answer.headers.items()}
                check_refusal(httpx.Response(answer.status_code, headers=headers, content=answer.content))

        return ask

    for operation in filter(is_asked, operations):
        with suppress(Unsatisfiable):  # there is no wrong way to ask for what takes no input
            check(operation)()
    return asked


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
@pytest.mark.parametrize("is_known", [False, True], ids=["made-up ids", "ids that exist"])
def test_no_operation_ends_in_a_server_error(
    live: LiveServer, http: httpx.Client, real: dict[str, str], mode: GenerationMode, is_known: bool
) -> None:
    asked = ask_everything(live, real if is_known else None, mode, examples=EXAMPLES, derandomize=True)

    least = 50 if mode is GenerationMode.POSITIVE else 35
    assert len(asked.operations) >= least, "the document names every route"
    assert asked.operations >= TALKS or mode is GenerationMode.NEGATIVE
    assert Stranger.meet(http).loss() > 0


@pytest.fixture(scope="module")
def keyed(models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A server with keys, an admin and another user."""
    flags = [f"--key={user}={key}" for user, key in USERS.items()]
    with LiveServer(models, tmp_path_factory.mktemp("keyed"), *flags, "--admin=root", key=USERS["root"]) as server:
        yield server


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
@pytest.mark.parametrize("user", USERS)
def test_no_route_for_operators_ends_in_a_server_error(keyed: LiveServer, user: str, mode: GenerationMode) -> None:
    asked = ask_everything(
        keyed,
        None,
        mode,
        examples=EXAMPLES,
        derandomize=True,
        is_asked=lambda operation: OPERATORS.fullmatch(operation.path) is not None,
        key=USERS[user],
    )

    assert len(asked.operations) >= (10 if mode is GenerationMode.POSITIVE else 7)
    with keyed.http(USERS[user]) as http:
        assert http.get("server").json()["is_admin"] is (user == "root")
        keys = http.get("keys")
    assert keys.status_code == (200 if user == "root" else 403)
    assert "Traceback" not in keyed.log() and " ERROR " not in keyed.log()


@pytest.mark.soak
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
@pytest.mark.parametrize("is_known", [False, True], ids=["made-up ids", "ids that exist"])
def test_no_operation_ends_in_a_server_error_however_often_it_is_asked(
    live: LiveServer, http: httpx.Client, real: dict[str, str], mode: GenerationMode, is_known: bool
) -> None:
    asked = ask_everything(live, real if is_known else None, mode, examples=SOAK_EXAMPLES, derandomize=False)

    print(f"{asked.statuses.total()} requests to {len(asked.operations)} operations: {dict(asked.statuses)}")
    assert Stranger.meet(http).loss() > 0
