"""Users of a server in this process: each speaks HTTP with a key of their own, and is refused as clients can bear."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
from fastapi import FastAPI

MODEL = "tiny"
KEYS = {"ann": "tml-of-ann", "bob": "tml-of-bob", "root": "tml-of-root"}
_ROUTES = {
    "weights": "save_weights",
    "sampler_weights": "save_weights_for_sampler",
    "external_weights": "save_weights_external",
}


@dataclass(slots=True)
class User:
    user_id: str
    http: httpx.AsyncClient  # paths are relative to /api/v1/
    _numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    async def session(self, **facts: Any) -> str:
        answer = await self.http.post("create_session", json={"sdk_version": "0.36.0", "tags": [], **facts})
        return str(answer.json()["session_id"])

    async def run(self, session_id: str | None = None) -> str:
        """A run that may be given work."""
        body = {
            "session_id": session_id or await self.session(),
            "model_seq_id": next(self._numbers),
            "base_model": MODEL,
            "lora_config": {"rank": 4, "seed": 0},
        }
        return str((await self.result("create_model", body))["model_id"])

    async def save(self, run_id: str, name: str, *, kind: str = "weights", **facts: Any) -> str:
        body = {"model_id": run_id, "seq_id": next(self._numbers), "path": name, **facts}
        return str((await self.result(_ROUTES[kind], body))["path"])

    async def result(self, route: str, body: dict[str, Any]) -> dict[str, Any]:
        """What a request came to; fails if it failed."""
        told = await self.outcome(route, body)
        assert "error" not in told, told
        return told

    async def outcome(self, route: str, body: dict[str, Any]) -> dict[str, Any]:
        accepted = await self.http.post(route, json=body)
        assert accepted.status_code == 200, accepted.text
        answer = await self.http.post("retrieve_future", json={"request_id": accepted.json()["request_id"]})
        told: dict[str, Any] = answer.json()
        return told

    async def listed(self, run_id: str) -> list[str]:
        """The ids that the run's list shows, newest first."""
        answer = await self.http.get(f"training_runs/{run_id}/checkpoints")
        assert answer.status_code == 200, answer.text
        return [each["checkpoint_id"] for each in answer.json()["checkpoints"]]

    async def entry(self, path: str) -> dict[str, Any]:
        """The checkpoint as it is shown to the user."""
        answer = await self.http.get(url_of(path))
        assert answer.status_code == 200, answer.text
        shown: dict[str, Any] = answer.json()
        return shown


def url_of(path: str, *more: str) -> str:
    run_id, kind, name = path.removeprefix("tinker://").split("/")
    return "/".join(("training_runs", run_id, "checkpoints", kind, name, *more))


def refusal(answer: httpx.Response, code: int) -> str:
    """Why a request was refused; fails unless it was refused with this code and in words."""
    assert answer.status_code == code, f"{answer.status_code}: {answer.text[:500]}"
    assert answer.headers["content-type"].startswith("application/json")
    detail = answer.json()["detail"]
    assert detail
    return str(detail)


@asynccontextmanager
async def users_of(app: FastAPI) -> AsyncIterator[dict[str, User]]:
    """All users of a server that runs in this process, by name, each with their own key."""
    async with AsyncExitStack() as stack:
        made = {}
        for user_id, key in KEYS.items():
            transport = httpx.ASGITransport(app, raise_app_exceptions=False)
            client = httpx.AsyncClient(
                transport=transport, base_url="http://localhost/api/v1/", headers={"X-API-Key": key}, timeout=60
            )
            made[user_id] = User(user_id, await stack.enter_async_context(client))
        yield made
