"""The wire: the API in plain HTTP requests, where the SDK would disturb the measure.

Its heartbeats keep sessions from being parked, and its pauses between two tries would be measured as ours.
"""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.live.models import Tokens
from benchmarks.live.server import KEY, connect

PATIENCE_SECONDS = 600.0
PAUSE_SECONDS = 0.05


class Refused(Exception):
    """The server answered with an error."""


class Wire:
    """One connection, used by one thread."""

    def __init__(self, url: str) -> None:
        self._connection = connect(url)

    def get(self, path: str) -> Any:  # Any: JSON
        return self._ask("GET", path, None)

    def post(self, path: str, **values: object) -> Any:  # Any: JSON
        return self._ask("POST", path, json.dumps(values))

    def new_session(self) -> str:
        return str(self.post("create_session", sdk_version="0.36.0")["session_id"])

    def new_run(self, session_id: str, number: int, *, base_model: str, rank: int) -> str:
        accepted = self.post(
            "create_model",
            session_id=session_id,
            model_seq_id=number,
            base_model=base_model,
            lora_config={"rank": rank, "seed": number},
        )
        return str(self.result(accepted)["model_id"])

    def finish(self, session_id: str) -> None:
        """End the session; the server unloads its runs."""
        self.post(f"sessions/{session_id}/finish", reason={"type": "success"})

    def train(self, run_id: str, sequences: Sequence[Tokens], *, seq_id: int) -> None:
        """One pass and one optimizer step, numbered ``seq_id`` and ``seq_id + 1``."""
        passing = self.post(
            "forward_backward", model_id=run_id, seq_id=seq_id, forward_backward_input=_input(sequences)
        )
        stepping = self.post("optim_step", model_id=run_id, seq_id=seq_id + 1, adam_params={"learning_rate": 1e-4})
        self.result(passing)
        self.result(stepping)

    def forward(self, run_id: str, sequences: Sequence[Tokens], *, seq_id: int) -> None:
        self.result(self.post("forward", model_id=run_id, seq_id=seq_id, forward_input=_input(sequences)))

    def result(self, accepted: Any) -> Any:  # Any: JSON
        """Wait for the result of an accepted request. Raises Refused."""
        answer = self.post("retrieve_future", request_id=accepted["request_id"])
        if "error" in answer:
            raise Refused(f"{accepted['request_id']}: {answer['error']}")
        return answer

    def _ask(self, method: str, path: str, body: str | None) -> Any:  # Any: JSON
        """Retries while the server is busy or the result is not ready."""
        headers = {"X-API-Key": KEY, "Content-Type": "application/json"}
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            self._connection.request(method, f"/api/v1/{path}", body=body, headers=headers)
            response = self._connection.getresponse()
            text = response.read()
            if response.status in (http.client.OK, http.client.NO_CONTENT):
                return json.loads(text) if text else None
            if response.status not in (408, 429, 503) or time.monotonic() > deadline:
                raise Refused(f"{method} {path} answered {response.status}: {text[:500]!r}")
            if response.status != http.client.REQUEST_TIMEOUT:  # the server held that request for as long as it may
                time.sleep(PAUSE_SECONDS)


def _input(sequences: Sequence[Tokens]) -> dict[str, object]:
    """Each sequence predicts its own next tokens."""
    return {
        "loss_fn": "cross_entropy",
        "data": [
            {
                "model_input": {"chunks": [{"type": "encoded_text", "tokens": tokens[:-1]}]},
                "loss_fn_inputs": {
                    "target_tokens": {"data": tokens[1:], "dtype": "int64", "shape": [len(tokens) - 1]},
                    "weights": {"data": [1.0] * (len(tokens) - 1), "dtype": "float32", "shape": [len(tokens) - 1]},
                },
            }
            for tokens in sequences
        ],
    }
