from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from chockstone.backends.losses import loss_meter
from chockstone.backends.losses.custom_loss import CustomLoss
from chockstone.backends.losses.loss_meter import PASS_WORK, LossMeter, PassBudget
from chockstone.wire.codecs.passes import Datum
from chockstone.wire.failures import BadRequest
from support.tiny_models import datum, finish, lora_run, request, tiny_base
from unit.backends.losses.test_custom_loss import RANK_1, REF, graph, run_graph

LONG = 1 << 22  # 16 MiB of float32
SQUARES = graph(("a", ".square", REF), ("x", ".sum", {"ref": "a"}))
QUANTILES = (("q", "torch.linspace", 0, 1, 100_000), ("x", "torch.quantile", {"ref": "a"}, {"ref": "q"}, 0))
TOO_MUCH: dict[str, tuple[dict[str, Any], str]] = {
    "quantiles": (graph(("a", "torch.ones", 16, 4096), *QUANTILES), "'x' .torch.quantile.: it makes more than 256 MiB"),
    "split": (graph(("a", "torch.ones", LONG), ("x", "torch.split", {"ref": "a"}, 1)), "'x' .torch.split.: it makes"),
    "unbind": (graph(("a", "torch.ones", LONG), ("x", "torch.unbind", {"ref": "a"})), "'x' .torch.unbind.: it makes"),
    "chunk": (graph(("a", "torch.ones", LONG), ("x", ".chunk", {"ref": "a"}, LONG)), "'x' .chunk.: it makes more"),
    "places": (graph(("a", "torch.ones", 8, LONG), ("x", "torch.where", {"ref": "a"})), "'x' .torch.where.: it makes"),
    "repetitions": (
        graph(("n", "torch.full", [5], 10**12), ("x", "torch.repeat_interleave", REF, {"ref": "n"})),
        "'x' .torch.repeat_interleave.: it makes more",
    ),
    "repetitions whose sum overflows": (
        graph(
            ("a", "torch.ones", 4),
            ("n", "torch.full", [4], 2**62),
            ("x", "torch.repeat_interleave", {"ref": "a"}, {"ref": "n"}),
        ),
        "'x' .torch.repeat_interleave.: it makes more",
    ),
    "differences": (
        graph(("a", "torch.ones", 10**5), ("x", "torch.diff", {"ref": "a"}, 10**5)),
        "'x' .torch.diff.: it",
    ),
    "products": (
        graph(
            ("a", "torch.ones", 1000, 1000),
            *((f"x{i}", "torch.matmul", {"ref": "a"}, {"ref": "a"}) for i in range(9)),
        ),
        "'x7' .torch.matmul.: it takes too long",
    ),
    "whole products": (
        graph(
            ("a", "torch.full", [900, 900], 1),
            ("x", "torch.matmul", {"ref": "a"}, {"ref": "a"}),
        ),
        "'x' .torch.matmul.: it takes too long",
    ),
    "sorting": (
        graph(("a", "torch.ones", LONG), *((f"x{i}", "torch.sort", {"ref": "a"}) for i in range(5))),
        "'x0' .torch.sort.: it takes too long",
    ),
    "decomposition": (
        graph(("a", "torch.ones", 50, 50), ("x", "torch.norm", {"ref": "a"}, "nuc")),
        "'linalg_svd' is not allowed in a custom loss",
    ),
    "a gradient": (
        graph(
            ("a", "torch.ones", 1 << 20),
            ("b", "operator.mul", {"ref": "a"}, {"ref": "first"}),
            *((f"x{i}", "operator.getitem", {"ref": "b"}, i) for i in range(1000)),
            ("y", "torch.stack", [{"ref": f"x{i}"} for i in range(1000)]),
            ("z", ".sum", {"ref": "y"}),
        ),
        "the gradient of the custom loss: it takes too long",
    ),
}
_first = {"op": "call_function", "name": "first", "target": "operator.getitem", "args": [REF, 0], "kwargs": {}}
TOO_MUCH["a gradient"][0]["nodes"].insert(1, _first)


@pytest.mark.parametrize("name", TOO_MUCH)
def test_what_costs_too_much_is_the_users_to_change_and_the_node_is_named(name: str) -> None:
    definition, message = TOO_MUCH[name]

    with pytest.raises(BadRequest, match=message):
        run_graph(definition)


@pytest.mark.parametrize(
    ("definition", "message"),
    [
        (
            graph(("x", "torch.floor_divide", REF, 0.3), ("y", ".sum", {"ref": "x"})),
            "has no gradient, nodes 'x': deriv",
        ),
        (graph(("x", "torch.heaviside", REF, REF), ("y", ".sum", {"ref": "x"})), "has no gradient, nodes 'x': deriv"),
        (
            graph(("a", ".clone", REF), ("x", "torch.nn.functional.relu", {"ref": "a"}, True)),
            "'inplace' is not allowed",
        ),
        (graph(("a", ".clone", REF), ("x", "torch.nn.functional.elu", {"ref": "a"}, 1.0, True)), "'inplace' is not"),
        (  # with which torch writes beyond its result
            graph(
                ("n", "torch.linspace", 10**6, -(10**6), 2),
                ("m", ".to", {"ref": "n"}, {"dtype": "int64"}),
                ("x", "torch.repeat_interleave", {"ref": "n"}, {"ref": "m"}),
            ),
            "'x' .torch.repeat_interleave.: repeats must not be negative",
        ),
        (graph(("x", ".to", REF, "meta")), "cannot use the device 'meta'"),
        (graph(("x", ".to", REF, {"device": "meta"})), "cannot use the device 'meta'"),
        (graph(("x", "torch.log", REF), ("y", ".sum", {"ref": "x"})), "the custom loss is nan; it must be finite"),
    ],
)
def test_a_failure_blames_the_loss(definition: dict[str, Any], message: str) -> None:
    with pytest.raises(BadRequest, match=message):
        run_graph(definition)


def test_what_has_no_gradient_may_be_used_where_none_is_needed() -> None:
    steps = graph(
        ("x", "torch.floor_divide", REF, 0.3),
        ("c", ".detach", {"ref": "x"}),
        ("m", "operator.mul", {"ref": "c"}, REF),
        ("y", ".sum", {"ref": "m"}),
    )

    assert run_graph(steps).gradient.flatten().tolist() == [-4, -3, -2, -1, 0]


@pytest.mark.parametrize(
    "definition",
    [
        graph(("x", "torch.norm", REF, 0)),
        graph(("x", ".to", REF, "cuda:1"), ("z", "operator.mul", {"ref": "x"}, 0), ("y", ".sum", {"ref": "z"})),
        graph(("x", ".cpu", REF), ("z", "operator.mul", {"ref": "x"}, 0), ("y", ".sum", {"ref": "z"})),
    ],
)
def test_a_loss_that_is_flat_or_was_traced_elsewhere_runs(definition: dict[str, Any]) -> None:
    assert not run_graph(definition).gradient.any()


def test_a_loss_costs_the_same_whatever_its_numbers_and_says_what_it_holds() -> None:
    costs = set()
    for seed in range(3):
        meter = PassBudget().meter()
        assert meter is not None
        logprobs = torch.rand(1000, 1, generator=torch.Generator().manual_seed(seed))
        CustomLoss.parse(SQUARES, RANK_1).differentiate(logprobs, {}, meter)
        costs.add((meter.work, meter.size_bytes))

    [(work, size_bytes)] = costs
    assert work > 4 * loss_meter.OVERHEAD
    assert size_bytes == 4 * 1000 + 4


def test_what_succeeded_before_is_not_refused_in_a_replay_and_has_the_same_bits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run, again = (lora_run(tiny_base()) for _ in range(2))
    asked = request(datum(7), datum(9, seed=1), loss="custom", loss_id="x")
    losses = {"x": CustomLoss.parse(graph(("a", ".square", REF), ("x", ".prod", {"ref": "a"})), RANK_1)}
    before = finish(run.apply(asked, losses))

    monkeypatch.setattr(loss_meter, "DATUM_WORK", 2 * loss_meter.OVERHEAD)
    monkeypatch.setattr(loss_meter, "DATUM_BYTES", 1)
    with pytest.raises(BadRequest, match="datum 1: custom loss, node 'a' .square.: it makes"):
        finish(again.apply(asked, losses))
    after = finish(again.apply(asked, losses, loss_limits="lifted"))

    assert [each.tobytes() for each in after.logprobs] == [each.tobytes() for each in before.logprobs]
    assert after.metrics == before.metrics
    assert torch.equal(run.state()["gradient"], again.state()["gradient"])


def test_a_pass_may_not_take_longer_however_many_datums_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    run = lora_run(tiny_base())
    losses = {"x": CustomLoss.parse(SQUARES, RANK_1)}
    [work] = {_work(losses["x"], positions) for positions in (5,)}
    monkeypatch.setattr(loss_meter, "PASS_WORK", 3 * work)

    finish(run.apply(request(*[datum(5)] * 3, loss="custom", loss_id="x"), losses))
    for tokens_per_micro_batch in (5, 1000):
        with pytest.raises(BadRequest, match="for all datums of the request"):
            asked = request(*[datum(5)] * 4, loss="custom", loss_id="x")
            finish(run.apply(asked, losses, tokens_per_micro_batch=tokens_per_micro_batch))


def _work(loss: CustomLoss, positions: int) -> int:
    meter = LossMeter(pass_left=PASS_WORK)
    loss.differentiate(torch.zeros(positions, 1), {}, meter)
    return meter.work


def test_what_others_spent_counts_and_the_verdict_is_the_same_for_any_number_of_processes() -> None:
    for shares in ([PASS_WORK + 1], [PASS_WORK, 1]):
        budget = PassBudget()
        with pytest.raises(BadRequest, match="for all datums"):
            for work in shares:
                budget.settle(work)
    PassBudget().settle(PASS_WORK)


def test_others_have_their_turn_between_the_datums_of_a_long_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    base = tiny_base()
    run, alone, other, other_alone = (lora_run(base, seed=seed) for seed in (0, 0, 1, 1))
    losses = {"x": CustomLoss.parse(SQUARES, RANK_1)}
    data: list[Datum] = [datum(6, seed=seed) for seed in range(5)]
    asked = request(*data, loss="custom", loss_id="x")
    undisturbed = finish(alone.apply(asked, losses))
    finish(other_alone.apply(asked, losses))

    monkeypatch.setattr(loss_meter, "TURN_WORK", 1)
    turns = 0
    passing, beside = run.apply(asked, losses), other.apply(asked, losses)
    while True:  # both in the middle of a micro-batch
        try:
            next(passing)
            turns += 1
            next(beside, None)
        except StopIteration as ended:
            result = ended.value
            break
    for _ in beside:
        pass

    assert turns == 5 + 1, "after each datum, and after the micro-batch"
    assert result.metrics == undisturbed.metrics
    assert all(np.array_equal(a, b) for a, b in zip(result.logprobs, undisturbed.logprobs, strict=True))
    assert torch.equal(run.state()["gradient"], alone.state()["gradient"])
    assert torch.equal(other.state()["gradient"], other_alone.state()["gradient"])
