"""Checkpoints under names and URLs that nobody means well: refused with the rule, and nothing else is touched."""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import string
from collections.abc import Iterator
from urllib.parse import urlsplit

import httpx
import pytest

from hostile.strangers import Stranger, retrieve
from support.live import LiveServer

NAMES = [
    "..", ".", "%2e%2e", "%2e", "%2e%2e%2f%2e%2e%2fetc%2fpasswd", "..%2f..%2f..%2fcatalog.sqlite3", "..%5c..", "%00",
    "a%00b", "%c3%a9", "%ff%fe", "%F0%9F%92%A5", "%E2%80%AE", "a%20b", "a%0d%0aX-Evil:%201", "x" * 256, "x" * 20_000,
    "a%2fb", "%25", "%252e%252e", "~root", "$(id)", "a;b", "a,b", "a'b", "a%22b", "%7B%7D", "*", "%3Cscript%3E", "a+b",
]  # fmt: skip
ACTIONS = [
    ("DELETE", ""), ("GET", ""), ("GET", "/archive"), ("GET", "/external_weights_urls"), ("POST", "/publish"),
    ("DELETE", "/publish"), ("PUT", "/ttl"), ("POST", "/verify"),
]  # fmt: skip


@pytest.fixture
def stranger(http: httpx.Client) -> Iterator[Stranger]:
    """With one checkpoint, which must be there and whole afterwards."""
    stranger = Stranger.meet(http)
    save = {"model_id": stranger.run_id, "seq_id": stranger.next_seq_id(), "path": "kept"}
    retrieve(http, http.post("save_weights", json=save).json()["request_id"])
    yield stranger
    [left] = http.get(f"training_runs/{stranger.run_id}/checkpoints").json()["checkpoints"]
    assert (left["checkpoint_id"], left["public"], left.get("expires_at")) == ("weights/kept", False, None)
    verified = http.post(f"training_runs/{stranger.run_id}/checkpoints/weights/kept/verify")
    assert verified.json() == {"state": "ready"}
    http.delete(f"training_runs/{stranger.run_id}/checkpoints/weights/kept")


class Plain:
    """Sends the path as it is; better clients tidy it up first."""

    def __init__(self, live: LiveServer, key: str | None) -> None:
        self._connection = http.client.HTTPConnection(urlsplit(live.url).netloc, timeout=60)
        self._headers = {"Content-Type": "application/json"} | ({} if key is None else {"X-API-Key": key})

    def close(self) -> None:
        self._connection.close()

    def ask(self, method: str, path: str) -> tuple[int, str]:
        body = b'{"ttl_seconds": 3600}' if method == "PUT" else None
        self._connection.request(method, f"/api/v1/{path}", body, self._headers)
        answer = self._connection.getresponse()
        content = answer.read()
        assert answer.headers["content-type"] == "application/json", (method, path, answer.status, content[:300])
        return answer.status, str(json.loads(content)["detail"])


@pytest.fixture
def plain(live: LiveServer) -> Iterator[Plain]:
    with contextlib.closing(Plain(live, live.key)) as plain:
        yield plain


@pytest.fixture
def nobody(live: LiveServer) -> Iterator[Plain]:
    """Without a key."""
    with contextlib.closing(Plain(live, None)) as nobody:
        yield nobody


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_a_name_outside_the_rule_is_refused_with_it(plain: Plain, stranger: Stranger, name: str) -> None:
    for method, action in ACTIONS:
        kind = "external_weights" if action == "/external_weights_urls" else "weights"
        code, detail = plain.ask(method, f"training_runs/{stranger.run_id}/checkpoints/{kind}/{name}{action}")

        assert code == 400, (method, action, code, detail)
        assert "1 to 255 characters" in detail
        assert len(detail) < 1000
    code, detail = plain.ask("DELETE", f"training_runs/{stranger.run_id}/checkpoints/{name}")
    assert code == 400
    assert "1 to 255 characters" in detail or "is not a kind of checkpoint" in detail


@pytest.mark.parametrize(
    "rest",
    ["", "/", "//", "weights/", "weights//kept", "/weights/kept", "weights/kept/", "kept/", "weights/kept/x", "w/kept",
     "Weights/kept", "weights/kept/publish/", "weights/./kept", "sampler_weights/../weights/kept", "weights%2fkept%2f"],
)  # fmt: skip
def test_a_slash_more_or_less_names_no_other_checkpoint(plain: Plain, stranger: Stranger, rest: str) -> None:
    code, detail = plain.ask("DELETE", f"training_runs/{stranger.run_id}/checkpoints/{rest}")

    assert code == 400, detail


@pytest.mark.parametrize("run_id", ["..", "%2e%2e", "%00", "%c3%a9", "a%20b", "x" * 256, "*", "%2e%2e%2f%2e%2e"])
def test_runs_that_cannot_be_are_refused(plain: Plain, http: httpx.Client, run_id: str) -> None:
    for method, action in ACTIONS:
        code, _ = plain.ask(method, f"training_runs/{run_id}/checkpoints/weights/kept{action}")
        assert code in (400, 404), (method, action, code)
    for method, path in (("GET", ""), ("DELETE", "/kept"), ("DELETE", "/weights/kept")):
        code, _ = plain.ask(method, f"training_runs/{run_id}/checkpoints{path}")
        assert code in (400, 404)


def test_nobody_deletes_publishes_or_lists_anything(nobody: Plain, stranger: Stranger) -> None:
    for method, action in ACTIONS:
        code, _ = nobody.ask(method, f"training_runs/{stranger.run_id}/checkpoints/weights/kept{action}")
        assert code == 401
    for method, path in (
        ("GET", "checkpoints"),
        ("GET", "audit"),
        ("GET", "storage"),
        ("GET", "trash"),
        ("DELETE", "trash"),
        ("GET", "policies"),
        ("DELETE", "policies/global"),
        ("GET", "billing/usage/checkpoints/current"),
        ("GET", f"sessions/{stranger.session_id}/trace_export"),
        ("DELETE", f"training_runs/{stranger.run_id}/checkpoints/kept"),
        ("DELETE", f"training_runs/{stranger.run_id}/checkpoints/a/b/c"),
    ):
        assert nobody.ask(method, path)[0] == 401, (method, path)


def test_urls_that_were_not_signed_reach_nothing(nobody: Plain, stranger: Stranger) -> None:
    http_client = stranger.http
    url = http_client.get(f"training_runs/{stranger.run_id}/checkpoints/weights/kept/archive").headers["location"]
    token, filename = url.rpartition("/downloads/")[2].split("/")
    trace = http_client.get(f"sessions/{stranger.session_id}/trace_export").json()["url"]
    trace_token = trace.rpartition("/traces/")[2].split("/")[0]
    letters = random.Random(11)
    alphabet = string.ascii_letters + string.digits + "-_.=%"
    forged = [
        "",
        "x",
        ".",
        "..",
        "%2e%2e",
        "%00",
        token[:-1],
        token[1:],
        f"{token}.x",
        f"{token}=",
        "a" * 20_000,
        "%ff.%ff",
    ]
    for _ in range(200):
        place = letters.randrange(len(token))
        forged.append(token[:place] + letters.choice(alphabet) + token[place + 1 :])

    for room, honest, name in (("downloads", token, filename), ("traces", trace_token, "x.pftrace")):
        for other in forged:
            if other != honest:
                code, detail = nobody.ask("GET", f"{room}/{other}/{name}")
                expected = (403, 404) if other else (401,)  # without a token it is no path of a signed URL
                assert code in expected, (room, other, code, detail)
    for path in (f"downloads/{trace_token}/{filename}", f"traces/{token}/x.pftrace"):
        assert nobody.ask("GET", path)[0] in (403, 404), path
    for tail in (f"../{filename}", "..%2f..%2fcatalog.sqlite3", f"/{filename}"):  # more parts than a signed URL has
        assert nobody.ask("GET", f"downloads/{token}/{tail}")[0] == 401, tail
