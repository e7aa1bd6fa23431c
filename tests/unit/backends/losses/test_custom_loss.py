from __future__ import annotations

import json
import math
import operator
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from tinker.lib.public_interfaces.custom_loss import encode_graph, trace_loss
from torch.fx.node import _get_qualified_name

from chockstone.backends.losses.custom_loss import CustomLoss, Evaluated
from chockstone.backends.losses.graph_operations import FUNCTIONS, METHODS
from chockstone.backends.losses.loss_meter import DATUM_BYTES, PassBudget
from chockstone.wire.codecs.passes import Datum
from chockstone.wire.failures import BadRequest
from support.tiny_models import (
    Reference,
    apply,
    assert_same_gradient,
    datum,
    finish,
    gradient,
    lora_run,
    request,
    tiny_base,
    tiny_model,
)

Returned = tuple[torch.Tensor, dict[str, torch.Tensor]]


def upload(fn: Callable[..., Returned], **ranks: int) -> CustomLoss:
    """What the SDK makes of a function, through JSON, as the server gets it."""
    handle = trace_loss(fn, ranks, "session")  # type: ignore[arg-type]
    graph = json.loads(encode_graph(handle).model_dump_json())
    return CustomLoss.parse(graph, [{"name": one.name, "rank": one.rank} for one in handle.inputs])


def graph(*nodes: tuple[Any, ...], loss: Any = None, metrics: Any = None) -> dict[str, Any]:
    """A graph by hand: (name, target, *args), a target with a dot in front being a method."""
    made: list[dict[str, Any]] = [{"op": "placeholder", "name": "logprobs", "target": "logprobs"}]
    for name, target, *args in nodes:
        op = "call_method" if target.startswith(".") else "call_function"
        made.append({"op": op, "name": name, "target": target.lstrip("."), "args": args, "kwargs": {}})
    returned = {"tuple": [loss or {"ref": made[-1]["name"]}, {"dict": metrics or {}}]}
    return {"format": 1, "nodes": [*made, {"op": "output", "name": "output", "target": "output", "args": [returned]}]}


REF = {"ref": "logprobs"}
RANK_1 = [{"name": "logprobs", "rank": 1}]


def run_graph(definition: dict[str, Any], positions: int = 5) -> Evaluated:
    """On as many logprobs from -1 up to 0."""
    logprobs = torch.linspace(-1, 0, positions)[:, None]
    return CustomLoss.parse(definition, RANK_1).differentiate(logprobs, {}, PassBudget().meter())


def clipped(logprobs: torch.Tensor, old: torch.Tensor, advantages: torch.Tensor, beta: torch.Tensor) -> Returned:
    ratio = torch.exp(logprobs - old)
    bounded = torch.clamp(ratio, 1 - 0.2, 1 + 0.28)
    kept = (advantages != 0).float()
    loss = -(torch.minimum(ratio * advantages, bounded * advantages) * kept).sum() / logprobs.shape[0]
    penalty = beta * torch.nn.functional.softplus(old - logprobs)[advantages > 0].sum()
    return loss + penalty**2, {"custom/ratio:mean": ratio.mean(), "custom/kept:sum": kept.sum()}


def ranked(logprobs: torch.Tensor, preference: torch.Tensor) -> Returned:
    scores = logprobs[:, :2].logsumexp(dim=-1, keepdim=True) - logprobs[..., 1:].mean(1, True)
    pairs = scores @ scores.transpose(0, 1)
    weighted = torch.where(preference.unsqueeze(-1) > 0, pairs, torch.zeros_like(pairs)).tanh()
    stacked = torch.stack([weighted.sum(), logprobs.square().sum() * 0.1, torch.logsumexp(preference, 0)])
    return stacked.mean() + math.pi, {"custom/a/b.c-d:mean": logprobs.max()}


def test_a_traced_loss_gives_the_loss_gradient_and_metrics_of_the_function() -> None:
    run = lora_run(tiny_base())
    reference = Reference(tiny_model(), run)
    data = tuple(datum(n, seed=n, inputs=("old", "advantages")) for n in (6, 9, 4))
    for one in data:
        one.inputs["old"] = one.inputs["old"] - 4
        one.inputs["beta"] = np.array(0.3, np.float32)
    loss = upload(clipped, logprobs=1, old=1, advantages=1, beta=0)

    result = finish(run.apply(request(*data, loss="custom", loss_id="x"), {"x": loss}, tokens_per_micro_batch=12))

    inputs = [{n: torch.from_numpy(np.array(v)) for n, v in one.inputs.items()} for one in data]
    metrics = [
        clipped(reference.logprobs(d), i["old"], i["advantages"], i["beta"])[1]
        for d, i in zip(data, inputs, strict=True)
    ]
    total, expected = reference.backward(data, lambda lp, i: clipped(lp, i["old"], i["advantages"], i["beta"])[0])
    assert result.metrics["loss:sum"] == pytest.approx(total, rel=1e-5)
    assert_same_gradient(gradient(run), expected)
    means = [float(m["custom/ratio:mean"].detach()) for m in metrics]
    assert result.metrics["custom/ratio:mean"] == pytest.approx(sum(means) / 3, rel=1e-5)
    assert result.metrics["custom/kept:sum"] == sum(float(m["custom/kept:sum"]) for m in metrics)


def test_a_loss_over_many_targets_reads_them_as_a_matrix() -> None:
    run = lora_run(tiny_base())
    reference = Reference(tiny_model(), run)
    one = datum(7, targets=3, seed=1)
    one.inputs["preference"] = np.random.default_rng(0).normal(size=7).astype(np.float32)
    loss = upload(ranked, logprobs=2, preference=1)

    result = finish(run.apply(request(one, loss="custom", loss_id="x"), {"x": loss}))

    total, expected = reference.backward((one,), lambda lp, i: ranked(lp, i["preference"])[0])
    assert result.metrics["loss:sum"] == pytest.approx(total, rel=1e-5)
    assert_same_gradient(gradient(run), expected)


def test_a_loss_that_ignores_the_model_has_no_gradient() -> None:
    def ignoring(logprobs: torch.Tensor, weights: torch.Tensor) -> Returned:
        return weights.sum(), {}

    run = lora_run(tiny_base())
    loss = upload(ignoring, logprobs=1, weights=1)

    finish(run.apply(request(datum(4, inputs=("weights", "unread")), loss="custom", loss_id="x"), {"x": loss}))

    assert not run.state()["gradient"].any()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"beta": None}, "datum 1: input 'beta' is missing, which the custom loss needs"),
        ({"old": np.zeros((4, 1), np.float32)}, "datum 1: input 'old' has rank 2, but the custom loss declared 1"),
        ({"old": np.zeros(9, np.float32)}, "datum 1: custom loss, node 'sub'.*size of tensor"),
    ],
)
def test_a_datum_that_does_not_fit_the_loss_is_refused(changes: dict[str, Any], message: str) -> None:
    run = lora_run(tiny_base())
    loss = upload(clipped, logprobs=1, old=1, advantages=1, beta=0)
    good = datum(4, inputs=("old", "advantages"))
    good.inputs["beta"] = np.array(0.3, np.float32)
    bad = Datum(good.tokens, {n: v for n, v in {**good.inputs, **changes}.items() if v is not None})

    with pytest.raises(BadRequest, match=message):
        finish(run.apply(request(good, bad, loss="custom", loss_id="x"), {"x": loss}))

    assert run.state()["gradient"] is None


def test_a_built_in_loss_after_a_failed_custom_one_is_as_ever() -> None:
    base = tiny_base()
    run, other = lora_run(base), lora_run(base)
    with pytest.raises(BadRequest):
        finish(run.apply(request(datum(3), loss="custom", loss_id="x"), {}))

    apply(run, datum(3))
    apply(other, datum(3))

    assert torch.equal(run.state()["gradient"], other.state()["gradient"])


HOSTILE: dict[str, tuple[dict[str, Any], str]] = {
    "unlisted function": (graph(("x", "os.system", "true")), "function 'os.system' is not allowed"),
    "dotted torch": (graph(("x", "torch.load", "/etc/passwd")), "not allowed"),
    "unlisted method": (graph(("x", ".item", REF)), "tensor method 'item' is not allowed"),
    "dunder method": (graph(("x", ".__reduce__", REF)), "not allowed"),
    "in place": (graph(("x", ".zero_", REF)), "not allowed"),
    "random": (graph(("x", "torch.rand_like", REF)), "not allowed"),
    "attribute": (graph(("x", "getattr", REF, "__class__")), "reading '__class__' of a Tensor is not allowed"),
    "attribute of an int": (graph(("n", ".numel", REF), ("x", "getattr", {"ref": "n"}, "shape")), "is not allowed"),
    "large expansion": (graph(("a", ".expand", REF, 10**9, 5), ("x", ".sum", {"ref": "a"})), "takes too long"),
    "copied expansion": (graph(("a", ".expand", REF, 10**9, 5), ("x", "torch.exp", {"ref": "a"})), "more than 256 MiB"),
    "large repeat": (graph(("x", ".repeat", REF, 10**15)), "more than"),
    "large zeros": (graph(("x", "torch.zeros", 10**12)), "more than"),
    "large range": (graph(("x", "torch.arange", 0, 10**13)), "more than"),
    "huge range": (graph(("x", "torch.arange", 0, 1e300)), "node 'x'"),
    "large tile": (graph(("x", "torch.tile", REF, {"tuple": [10**14]})), "more than"),
    "large padding": (graph(("x", "torch.nn.functional.pad", REF, {"tuple": [0, 10**13]})), "more than"),
    "large interleave": (graph(("x", "torch.repeat_interleave", REF, 10**13)), "more than"),
    "large eye": (graph(("x", "torch.eye", 10**6)), "more than"),
    "doubling": (
        graph(*((f"x{i + 1}", "torch.cat", [{"ref": f"x{i}"}] * 2) for i in range(60)), loss=REF) | {},
        "not an earlier node",
    ),
    "growing outer": (
        graph(
            ("a", "torch.arange", 10**5),
            ("b", ".unsqueeze", {"ref": "a"}, 1),
            ("x", "operator.mul", {"ref": "a"}, {"ref": "b"}),
        ),
        "more than",
    ),
    "many middling": (
        graph(("a", "torch.ones", DATUM_BYTES // 16), *((f"x{i}", "torch.exp", {"ref": "a"}) for i in range(5))),
        "more than",
    ),
    "large product": (
        graph(("a", "torch.ones", 2500, 2500), ("x", "operator.matmul", {"ref": "a"}, {"ref": "a"})),
        "node 'x' .operator.matmul.: it takes too long: more than 2 s by estimate",
    ),
    "long power": (
        graph(("n", ".numel", REF), ("x", "operator.pow", {"ref": "n"}, 10**9)),
        "to the power of .* too large",
    ),
    "long product": (
        graph(("n", ".numel", REF), ("m", "operator.mul", {"ref": "n"}, 2**62), ("x", "operator.add", {"ref": "m"}, 1)),
        "does not fit 64 bits",
    ),
    "text times number": (graph(("x", "operator.mul", "text", 10**9)), "arithmetic on a str is not allowed"),
    "list times number": (graph(("x", "operator.mul", [1], 10**9)), "arithmetic on a list is not allowed"),
    "division by zero": (graph(("n", ".numel", REF), ("x", "operator.floordiv", {"ref": "n"}, 0)), "ZeroDivisionError"),
    "not a scalar": (graph(("x", "torch.exp", REF)), r"returned \[5\] for its loss; it must be a scalar"),
    "a number": (graph(("x", ".numel", REF)), "returned int for its loss"),
    "whole loss": (graph(("x", ".numel", REF), ("y", "torch.argmax", REF)), "must be floating point"),
    "metric of rank 1": (
        graph(("x", ".sum", REF), metrics={"custom/m:sum": REF}),
        r"returned \[5\] for custom/m:sum",
    ),
    "mask among others": (
        graph(("m", "torch.isnan", REF), ("x", "operator.getitem", REF, {"tuple": [None, {"ref": "m"}]})),
        r"must be the only index",
    ),
    "missing argument": (graph(("x", "torch.exp")), "TypeError"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_graph_is_refused_before_it_costs_anything(name: str) -> None:
    definition, message = HOSTILE[name]

    with pytest.raises(BadRequest, match=message):
        run_graph(definition)


def test_doubling_stops_at_the_limit() -> None:
    doubled = graph(
        ("x0", "torch.exp", REF),
        *((f"x{i + 1}", "torch.cat", [{"ref": f"x{i}"}, {"ref": f"x{i}"}]) for i in range(60)),
    )

    with pytest.raises(BadRequest, match="more than"):
        run_graph(doubled)


def broken(change: Callable[[list[dict[str, Any]]], object]) -> dict[str, Any]:
    definition = graph(("x", "torch.exp", REF), ("y", ".sum", {"ref": "x"}))
    change(definition["nodes"])
    return definition


@pytest.mark.parametrize(
    ("definition", "message"),
    [
        (None, "graph of format 1"),
        ({"format": 2, "nodes": []}, "graph of format 1"),
        ({"format": 1, "nodes": []}, "placeholder for each input"),
        ({"format": 1, "nodes": [{}] * 2000}, "2000 nodes; at most"),
        (broken(lambda nodes: nodes.append(3)), "must be its output|needs an op"),
        (broken(lambda nodes: nodes.pop()), "must be its output"),
        (broken(lambda nodes: nodes.pop(0)), "which is not an earlier node"),
        (broken(lambda nodes: nodes[0].update(target="weights")), "reads 'weights' as its input 1"),
        (broken(lambda nodes: nodes[1].update(name="logprobs")), "two nodes named 'logprobs'"),
        (broken(lambda nodes: nodes[1].update(op="call_module")), "'call_module', which a custom loss cannot contain"),
        (broken(lambda nodes: nodes[1].update(op="get_attr")), "'get_attr', which a custom loss cannot contain"),
        (broken(lambda nodes: nodes[1].update(kwargs={"out": REF})), "argument 'out' is not allowed"),
        (broken(lambda nodes: nodes[1].update(args=[{"ref": "y"}])), "not an earlier node"),
        (broken(lambda nodes: nodes[1].update(args=[{"code": "1"}])), "not an argument"),
        (broken(lambda nodes: nodes[1].update(args=[{"dtype": "complex64"}])), "not an argument"),
        (broken(lambda nodes: nodes[1].update(args=[{"a": 1, "b": 2}])), "not an argument"),
        (broken(lambda nodes: nodes[1].update(args=["x" * 1000])), "not an argument"),
        (broken(lambda nodes: nodes[1].update(args=[[[[[[[[[[[1]]]]]]]]]]])), "too many or too deep"),
        (broken(lambda nodes: nodes[1].update(args=[[0] * 30_000])), "too many or too deep"),
        (broken(lambda nodes: nodes[1].update(args="x")), "list of args"),
        (broken(lambda nodes: nodes[3].update(args=[REF])), "returns two things"),
        (graph(("x", ".sum", REF), metrics={"loss:sum": REF}), "names like 'custom/kl:mean'"),
        (graph(("x", ".sum", REF), loss=3.0), "not an earlier node"),
    ],
)
def test_a_malformed_graph_is_refused(definition: Any, message: str) -> None:
    with pytest.raises(BadRequest, match=message):
        CustomLoss.parse(definition, RANK_1)


@pytest.mark.parametrize(
    "inputs",
    [
        None,
        [],
        [{"name": "weights", "rank": 1}],
        [{"name": "logprobs", "rank": 0}],
        [{"name": "logprobs", "rank": True}],
        [{"name": "logprobs", "rank": 1}, {"name": "Bad Name", "rank": 1}],
        [{"name": "logprobs", "rank": 1}] * 2,
        [{"name": "logprobs", "rank": 1}, *({"name": f"x{i}", "rank": 1} for i in range(16))],
        ["logprobs"],
    ],
)
def test_malformed_inputs_are_refused(inputs: Any) -> None:
    with pytest.raises(BadRequest):
        CustomLoss.parse(graph(("x", ".sum", REF)), inputs)


def mutations(value: Any, other: Any) -> Iterator[Any]:
    """The value with one part after the other replaced."""
    if isinstance(value, dict):
        for key in value:
            yield {**value, key: other}
            for inner in mutations(value[key], other):
                yield {**value, key: inner}
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield [*value[:index], other, *value[index + 1 :]]
            for inner in mutations(item, other):
                yield [*value[:index], inner, *value[index + 1 :]]


@pytest.mark.parametrize("other", [None, -1, 2**62, "torch.exp", [], {}, {"ref": "logprobs"}, {"float": "nan"}, 0.5])
def test_a_mutated_graph_runs_or_is_refused(other: Any) -> None:
    handle = trace_loss(ranked, {"logprobs": 2, "preference": 1}, "session")  # type: ignore[arg-type]
    definition = json.loads(encode_graph(handle).model_dump_json())
    inputs = [{"name": "logprobs", "rank": 2}, {"name": "preference", "rank": 1}]

    for mutated in mutations(definition, other):
        try:
            loss, _ = CustomLoss.parse(mutated, inputs)(torch.zeros(4, 3), {"preference": torch.ones(4)})
        except BadRequest:
            continue
        assert isinstance(loss, torch.Tensor)


def test_every_allowed_function_is_found_by_the_name_that_tracing_gives_it() -> None:
    homes = {"torch": torch, "torch.nn.functional": torch.nn.functional, "operator": operator, "math": math}
    traced = {}
    for name in FUNCTIONS:
        home, _, short = name.rpartition(".")
        if home in homes:
            traced[name] = _get_qualified_name(getattr(homes[home], short)).replace("_operator.", "operator.")

    assert len(traced) > 200
    assert {name: other for name, other in traced.items() if other not in FUNCTIONS} == {}


def test_nothing_that_works_in_place_is_allowed() -> None:
    assert not [name for name in (*FUNCTIONS, *METHODS) if name.endswith("_") and not name.startswith("operator.")]
