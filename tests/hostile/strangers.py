"""A client without manners: it speaks raw HTTP, and knows what a refusal must look like."""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass, field
from typing import Any, Final

import httpx
import numpy as np

from chockstone.wire.codecs import messages_pb2 as pb

PROTOBUF = {"Content-Type": "application/x-protobuf"}
TOKENS = list(range(10, 30))
PATIENCE_SECONDS: Final = 200.0  # for a result; less than the time limit of a test, so that an assertion fails


def check_refusal(answer: httpx.Response) -> str:
    """Say why a request was refused; fails unless the refusal is one that clients neither repeat nor misread."""
    assert 400 <= answer.status_code < 500, f"{answer.status_code}: {answer.text[:500]}"
    assert answer.status_code not in (402, 408, 409, 429), f"{answer.status_code} is repeated: {answer.text[:500]}"
    assert answer.headers["content-type"].startswith("application/json"), answer.headers
    refusal = answer.json()
    reason = refusal["error"]["message"] if "error" in refusal else refusal["detail"]  # the former is other vendors'
    assert reason, "an empty refusal is repeated"
    return str(reason)


def retrieve(http: httpx.Client, request_id: str) -> httpx.Response:
    """The result of a request, waited for as clients would; fails if there is none in time."""
    headers = {"Accept": PROTOBUF["Content-Type"]}
    deadline = time.monotonic() + PATIENCE_SECONDS
    while (answer := http.post("retrieve_future", json={"request_id": request_id}, headers=headers)).status_code == 408:
        assert time.monotonic() < deadline, f"request {request_id!r} has no result in {PATIENCE_SECONDS:.0f} s"
    return answer


def check_failure(http: httpx.Client, accepted: httpx.Response) -> str:
    """Say why an accepted request failed; fails unless the fault is the caller's."""
    assert accepted.status_code == 200, accepted.text
    failure = retrieve(http, accepted.json()["request_id"]).json()
    assert failure["category"] == "user", failure
    return str(failure["error"])


def check_unhappy(http: httpx.Client, answer: httpx.Response) -> str:
    """Either of the two."""
    return check_failure(http, answer) if answer.status_code == 200 else check_refusal(answer)


def tensor(values: Any, dtype: str, shape: list[int] | None = None) -> pb.Tensor:
    array = np.asarray(values, dtype=dtype)
    kind = pb.DTYPE_FLOAT32 if dtype == "<f4" else pb.DTYPE_INT64
    return pb.Tensor(dense=array.tobytes(), dtype=kind, shape=list(array.shape) if shape is None else shape)


@dataclass(slots=True)
class Stranger:
    """A session with one run, and the numbers of its requests."""

    http: httpx.Client
    session_id: str
    run_id: str
    _seq_ids: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    @classmethod
    def meet(cls, http: httpx.Client, model: str = "tiny-qwen3") -> Stranger:
        session_id = http.post("create_session", json={"tags": [], "sdk_version": "0.36.0"}).json()["session_id"]
        wish = {"session_id": session_id, "model_seq_id": 0, "base_model": model, "lora_config": {"rank": 4, "seed": 0}}
        accepted = http.post("create_model", json=wish).json()
        assert "model_id" in retrieve(http, accepted["request_id"]).json()
        return cls(http, session_id, accepted["model_id"])

    def next_seq_id(self) -> int:
        return next(self._seq_ids)

    def open_sampler(self, number: int = 0, model: str = "tiny-qwen3") -> str:
        wish = {"session_id": self.session_id, "sampling_session_seq_id": number, "base_model": model}
        return str(self.http.post("create_sampling_session", json=wish).json()["sampling_session_id"])

    def pass_message(self) -> pb.ForwardBackwardRequest:
        """A sound one."""
        message = pb.ForwardBackwardRequest(
            model_id=self.run_id, seq_id=self.next_seq_id(), loss_fn="cross_entropy", forward_only=True
        )
        datum = message.data.add()
        datum.model_input.add().encoded_text.tokens = np.asarray(TOKENS[:-1], "<i4").tobytes()
        datum.loss_fn_inputs["target_tokens"].CopyFrom(tensor(TOKENS[1:], "<i8"))
        datum.loss_fn_inputs["weights"].CopyFrom(tensor([1.0] * (len(TOKENS) - 1), "<f4"))
        return message

    def send(self, message: pb.ForwardBackwardRequest) -> httpx.Response:
        return self.http.post("forward_backward", content=message.SerializeToString(), headers=PROTOBUF)

    def loss(self) -> float:
        """Of a sound pass, which the server must be able to do whatever went before."""
        accepted = self.send(self.pass_message())
        assert accepted.status_code == 200, accepted.text
        result = retrieve(self.http, accepted.json()["request_id"])
        assert result.headers["content-type"] == PROTOBUF["Content-Type"], result.text
        return pb.ForwardBackwardOutput.FromString(result.content).metrics["loss:sum"]
