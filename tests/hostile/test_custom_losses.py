"""Uploaded losses against a live server: whose they are, what they may cost, and whom their failures blame."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from chockstone.wire.codecs import messages_pb2 as pb
from hostile.strangers import PROTOBUF, Stranger, check_failure, check_refusal, check_unhappy, retrieve
from support.live import LiveServer

ANN, BOB = "tml-the-key-of-ann", "tml-the-key-of-bob"
REF = {"ref": "logprobs"}


@pytest.fixture(scope="module")
def shared(models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    keys = ("--key", f"ann={ANN}", "--key", f"bob={BOB}")
    with LiveServer(models, tmp_path_factory.mktemp("losses"), *keys, key=ANN) as server:
        yield server


@pytest.fixture
def ann(shared: LiveServer) -> Iterator[Stranger]:
    with shared.http(ANN) as http:
        yield Stranger.meet(http)


@pytest.fixture
def bob(shared: LiveServer) -> Iterator[Stranger]:
    with shared.http(BOB) as http:
        yield Stranger.meet(http)


def upload(owner: Stranger, *nodes: tuple[Any, ...], number: int = 0) -> str:
    """A loss of nodes (name, target, *args), the last of which it returns; its id."""
    made: list[dict[str, Any]] = [{"op": "placeholder", "name": "logprobs", "target": "logprobs"}]
    for name, target, *args in nodes:
        op = "call_method" if target.startswith(".") else "call_function"
        made.append({"op": op, "name": name, "target": target.lstrip("."), "args": args, "kwargs": {}})
    returned = {"tuple": [{"ref": made[-1]["name"]}, {"dict": {}}]}
    made.append({"op": "output", "name": "output", "target": "output", "args": [returned]})
    wish = {
        "session_id": owner.session_id,
        "custom_loss_seq_id": number,
        "name": "loss",
        "inputs": [{"name": "logprobs", "rank": 1}],
        "graph": {"format": 1, "nodes": made},
    }
    accepted = owner.http.post("create_custom_loss", json=wish)
    assert accepted.status_code == 200, accepted.text
    built = retrieve(owner.http, accepted.json()["request_id"]).json()
    return str(built["loss_id"])


def ask(run: Stranger, loss_id: str, *, datums: int = 1, forward_only: bool = False) -> httpx.Response:
    message = run.pass_message()
    message.loss_fn, message.forward_only = "custom", forward_only
    message.loss_fn_config_v2["loss_id"].text = loss_id
    for _ in range(datums - 1):
        message.data.add().CopyFrom(message.data[0])
    return run.send(message)


def total(run: Stranger, accepted: httpx.Response) -> float:
    assert accepted.status_code == 200, accepted.text
    result = retrieve(run.http, accepted.json()["request_id"])
    assert result.headers["content-type"] == PROTOBUF["Content-Type"], result.text
    return pb.ForwardBackwardOutput.FromString(result.content).metrics["loss:sum"]


def step(run: Stranger) -> dict[str, float]:
    wish = {"model_id": run.run_id, "seq_id": run.next_seq_id(), "adam_params": {"learning_rate": 0.01}}
    metrics: dict[str, float] = retrieve(run.http, run.http.post("optim_step", json=wish).json()["request_id"]).json()[
        "metrics"
    ]
    return metrics


SQUARES = (("squares", ".square", REF), ("sum", ".sum", {"ref": "squares"}))


def test_another_users_loss_is_refused_like_one_that_never_was(ann: Stranger, bob: Stranger) -> None:
    loss_id = upload(ann, *SQUARES)

    refused = [ask(bob, each) for each in (loss_id, f"{ann.session_id}:loss:77")]

    assert [answer.status_code for answer in refused] == [404, 404]
    told = [check_refusal(answer).replace(loss_id, "ID") for answer in refused]
    assert told[0].replace(":loss:0", "") == told[1].replace(f"{ann.session_id}:loss:77", "ID")
    assert bob.loss() > 0, "the run goes on"


def test_a_run_that_used_a_loss_of_another_session_survives_its_worker_bit_by_bit(
    shared: LiveServer, ann: Stranger
) -> None:
    loss_id = upload(ann, *SQUARES)
    with shared.http(ANN) as http:
        run, undisturbed = Stranger.meet(http), Stranger.meet(http)
        for each in (run, undisturbed):
            total(each, ask(each, loss_id))
            step(each)
            total(each, ask(each, loss_id))
        http.post(f"sessions/{ann.session_id}/finish", json={"reason": {"type": "success"}, "detail": None})

        [worker] = shared.workers()
        os.kill(worker, signal.SIGKILL)

        assert step(run) == step(undisturbed)
        assert total(run, ask(run, loss_id)) == total(undisturbed, ask(undisturbed, loss_id))
        receipts = http.get(f"training_runs/{run.run_id}/recoveries").json()["recoveries"]
        assert [(each["replayed"], each["mismatched"]) for each in receipts] == [(4, 0)]


ONES = ("a", "torch.ones", 1000, 1000)
COSTLY: dict[str, tuple[tuple[tuple[Any, ...], ...], str]] = {
    "hours of products": (
        (ONES, *((f"x{i}", "torch.matmul", {"ref": "a"}, {"ref": "a"}) for i in range(1000))),
        "'x7' (torch.matmul): it takes too long",
    ),
    "gigabytes of quantiles": (
        (ONES, ("q", "torch.linspace", 0, 1, 10**6), ("x", "torch.quantile", {"ref": "a"}, {"ref": "q"}, 0)),
        "'x' (torch.quantile): it makes more than 256 MiB",
    ),
    "a million parts": (
        (("a", "torch.ones", 1 << 22), ("x", "torch.split", {"ref": "a"}, 1)),
        "'x' (torch.split): it makes more than 256 MiB",
    ),
    "no gradient": (
        (("x", "torch.heaviside", REF, REF), ("y", ".sum", {"ref": "x"})),
        "the custom loss has no gradient, nodes 'x'",
    ),
    "a change in place": (
        (("c", ".clone", REF), ("x", "torch.nn.functional.relu", {"ref": "c"}, True), ("y", ".sum", {"ref": "x"})),
        "'x' (torch.nn.functional.relu): the argument 'inplace' is not allowed",
    ),
}


def test_a_costly_or_broken_loss_is_its_owners_fault_and_others_go_on(
    shared: LiveServer, ann: Stranger, bob: Stranger
) -> None:
    offset = len(shared.log())
    losses = [upload(ann, *nodes, number=number) for number, (nodes, _) in enumerate(COSTLY.values())]

    accepted = [ask(ann, loss_id, datums=16) for loss_id in losses]
    assert bob.loss() > 0

    for answer, (_, message) in zip(accepted, COSTLY.values(), strict=True):
        assert message in check_failure(ann.http, answer)
    assert ann.loss() > 0
    assert "Traceback" not in shared.log()[offset:]


def test_a_temperature_that_no_number_can_be_divided_by_is_refused(bob: Stranger) -> None:
    wish = {
        "sampling_session_id": bob.open_sampler(),
        "seq_id": 1,
        "num_samples": 1,
        "prompt": {"chunks": [{"type": "encoded_text", "tokens": [1, 2, 3]}]},
        "sampling_params": {"max_tokens": 2, "temperature": 1e-320},
    }

    assert "temperature must be 0 or at least" in check_unhappy(bob.http, bob.http.post("asample", json=wish))
