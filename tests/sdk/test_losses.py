"""Losses through the SDK, held against plain PyTorch: values, log-probabilities, and gradients by their norm.

Runs of rank 0 stand for the gradient: the norm that their step reports is of every weight of the model.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tinker
import torch
from tinker import types

from sdk.making import ADAM, MODEL, batch, create, datum, numbers, tokens
from support.plain_model import LOSSES, PlainModel, total

LENGTHS = (9, 17, 30)
POLICY = ("logprobs", "advantages")
STILL = types.AdamParams(learning_rate=0.0)
INPUTS: dict[str, tuple[str, ...]] = {
    "cross_entropy": ("weights",),
    "importance_sampling": POLICY,
    "ppo": POLICY,
    "cispo": POLICY,
    "dro": POLICY,
    "gspo": (*POLICY, "sequence_ratio_mask"),
}
CASES: list[tuple[str, dict[str, float]]] = [
    *((loss, {}) for loss in LOSSES),
    ("ppo", {"clip_low_threshold": 0.9, "clip_high_threshold": 1.05}),
    ("cispo", {"clip_low_threshold": 0.5, "clip_high_threshold": 1.1}),
    ("gspo", {"clip_low_threshold": 0.99, "clip_high_threshold": 1.01}),
    ("dro", {"beta": 0.3}),
]
uploads = pytest.mark.skipif(
    not hasattr(tinker.ServiceClient, "create_custom_loss"), reason="this SDK uploads no losses"
)
OPTIONS = {"clip_low_threshold": "low", "clip_high_threshold": "high", "beta": "beta"}


@pytest.fixture(scope="module")
def plain(models: dict[str, Any]) -> PlainModel:
    return PlainModel(models[MODEL])


@pytest.fixture
def run(service: tinker.ServiceClient) -> tinker.TrainingClient:
    return create(service, rank=0)


class Case:
    """Three texts with inputs for a loss, near enough to the model for its ratios to be on both sides of 1."""

    def __init__(self, plain: PlainModel, loss: str, columns: int | None = None) -> None:
        draw = torch.Generator().manual_seed(7)
        self.texts = [tokens(index, length) for index, length in enumerate(LENGTHS)]
        self.targets = []
        self.inputs = []
        for text in self.texts:
            shape = (len(text),) if columns is None else (len(text), columns)
            targets = torch.randint(0, 512, shape, generator=draw)
            with torch.no_grad():
                near = plain.logprobs(text, targets) + 0.3 * torch.randn(shape, generator=draw)
            given = {
                "weights": torch.randn(shape, generator=draw),
                "logprobs": near,
                "advantages": torch.randn(shape, generator=draw),
                "sequence_ratio_mask": (torch.rand(shape, generator=draw) > 0.3).float(),
            }
            self.targets.append(targets)
            self.inputs.append({name: given[name] for name in INPUTS[loss]})

    def data(self) -> list[types.Datum]:
        return [
            types.Datum(model_input=types.ModelInput.from_ints(text), loss_fn_inputs={"target_tokens": aim, **inputs})
            for text, aim, inputs in zip(self.texts, self.targets, self.inputs, strict=True)
        ]

    def logprobs(self, plain: PlainModel) -> list[torch.Tensor]:
        return [plain.logprobs(text, aim) for text, aim in zip(self.texts, self.targets, strict=True)]


def check(run: tinker.TrainingClient, case: Case, plain: PlainModel, loss: str, config: dict[str, float]) -> None:
    logprobs = case.logprobs(plain)
    options = {OPTIONS[name]: value for name, value in config.items()}
    expected = total(LOSSES[loss](lp, x, **options) for lp, x in zip(logprobs, case.inputs, strict=True))

    output = run.forward_backward(case.data(), loss, config or None).result()
    norm = run.optim_step(STILL).result().metrics["grad_norm"]

    for out, logprob in zip(output.loss_fn_outputs, logprobs, strict=True):
        assert list(out["logprobs"].shape or [len(out["logprobs"].data)]) == list(logprob.shape)
        torch.testing.assert_close(
            torch.tensor(out["logprobs"].data).reshape(logprob.shape), logprob.detach(), atol=1e-4, rtol=0
        )
    assert output.metrics["loss:sum"] == pytest.approx(expected.item(), rel=1e-4, abs=1e-3)
    check_positions(output, case, loss)
    assert norm == pytest.approx(plain.gradient_norm(expected), rel=1e-4)


def check_positions(output: types.ForwardBackwardOutput, case: Case, loss: str) -> None:
    """Each position's own loss is there, in the shape of its targets; together they are the whole."""
    assert [set(out) for out in output.loss_fn_outputs] == [{"logprobs", "elementwise_loss"}] * len(case.texts)
    read = [
        {name: torch.tensor(value.data, dtype=torch.float64).reshape(aim.shape) for name, value in out.items()}
        for out, aim in zip(output.loss_fn_outputs, case.targets, strict=True)
    ]
    assert sum(float(out["elementwise_loss"].sum()) for out in read) == pytest.approx(
        output.metrics["loss:sum"], rel=1e-9, abs=1e-9
    )
    if loss == "cross_entropy":
        for out, inputs in zip(read, case.inputs, strict=True):
            expected = (-inputs["weights"] * out["logprobs"].float()).double()
            torch.testing.assert_close(out["elementwise_loss"], expected, atol=0, rtol=0)


@pytest.mark.parametrize(("loss", "config"), CASES)
def test_a_loss_and_its_gradient_are_those_of_plain_torch(
    run: tinker.TrainingClient, plain: PlainModel, loss: str, config: dict[str, float]
) -> None:
    check(run, Case(plain, loss), plain, loss, config)


@pytest.mark.parametrize("loss", ["cross_entropy", "importance_sampling"])
def test_several_targets_at_each_position(run: tinker.TrainingClient, plain: PlainModel, loss: str) -> None:
    check(run, Case(plain, loss, columns=3), plain, loss, {})


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support:UserWarning")
def test_sparse_targets_are_those_they_stand_for(run: tinker.TrainingClient, plain: PlainModel) -> None:
    """The client sends mostly empty [N, K] tensors as CSR; empty cells are token 0 with weight 0."""
    case = Case(plain, "cross_entropy", columns=8)
    for targets, inputs in zip(case.targets, case.inputs, strict=True):
        targets[:, 1:] = 0
        inputs["weights"][:, 1:] = 0
    data = case.data()
    assert data[0].loss_fn_inputs["target_tokens"].sparse_crow_indices is not None
    assert data[0].loss_fn_inputs["weights"].sparse_crow_indices is not None

    check(run, case, plain, "cross_entropy", {})


def test_weights_default_to_one(run: tinker.TrainingClient) -> None:
    with_weights = datum(1)
    inputs = {"target_tokens": with_weights.loss_fn_inputs["target_tokens"]}
    without = types.Datum(model_input=with_weights.model_input, loss_fn_inputs=inputs)

    outputs = [run.forward([given], "cross_entropy").result() for given in (with_weights, without)]

    assert outputs[0].metrics["loss:sum"] == outputs[1].metrics["loss:sum"]


def test_forward_gives_the_numbers_and_no_gradient(service: tinker.ServiceClient) -> None:
    run = create(service)

    seen = run.forward(batch(1), "cross_entropy").result()
    nothing = run.optim_step(ADAM).result().metrics
    trained = run.forward_backward(batch(1), "cross_entropy").result()

    assert numbers(seen) == numbers(trained)
    assert seen.metrics["loss:sum"] == trained.metrics["loss:sum"]
    assert "grad_norm" not in nothing


def test_metrics_are_named_so_that_the_client_can_add_them(run: tinker.TrainingClient, plain: PlainModel) -> None:
    for loss in LOSSES:
        metrics = run.forward(Case(plain, loss).data(), loss).result().metrics
        assert "loss:sum" in metrics
        assert all(name.count(":") == 1 for name in metrics)


def test_a_loss_computed_by_the_client(run: tinker.TrainingClient, plain: PlainModel) -> None:
    case = Case(plain, "cross_entropy")

    def squares(data: list[types.Datum], logprobs: list[torch.Tensor]) -> tuple[torch.Tensor, dict[str, float]]:
        return total((lp**2).sum() for lp in logprobs), {"texts:sum": float(len(data))}

    output = run.forward_backward_custom(case.data(), squares).result()
    norm = run.optim_step(STILL).result().metrics["grad_norm"]

    expected = total((lp**2).sum() for lp in case.logprobs(plain))
    if "surrogate_loss:sum" in output.metrics:  # older SDKs report that one in place of the loss
        assert output.metrics["loss:sum"] == pytest.approx(expected.item(), rel=1e-4)
    assert output.metrics["texts:sum"] == 3.0
    assert norm == pytest.approx(plain.gradient_norm(expected), rel=1e-4)


def hinge(logprobs: torch.Tensor, weights: torch.Tensor, margin: torch.Tensor) -> Any:
    gap = torch.clamp(margin - logprobs, min=0.0)
    loss = (gap * gap * weights).sum() + torch.exp(logprobs).mean()
    return loss, {"custom/gap:mean": gap.mean(), "custom/weight:sum": weights.sum()}


@uploads
def test_a_loss_uploaded_to_the_server(service: tinker.ServiceClient, plain: PlainModel) -> None:
    run, case = create(service, rank=0), Case(plain, "cross_entropy")
    for inputs in case.inputs:
        inputs["margin"] = torch.full_like(inputs["weights"], -5.5)

    handle = service.create_custom_loss(hinge, {"logprobs": 1, "weights": 1, "margin": 1}).result()
    output = run.forward_backward_custom(case.data(), handle).result()
    norm = run.optim_step(STILL).result().metrics["grad_norm"]

    assert handle.loss_id is not None
    results = [hinge(lp, **x) for lp, x in zip(case.logprobs(plain), case.inputs, strict=True)]
    expected = total(loss for loss, _ in results)
    assert output.metrics["loss:sum"] == pytest.approx(expected.item(), rel=1e-4)
    assert output.metrics["custom/gap:mean"] == pytest.approx(
        total(metrics["custom/gap:mean"].item() for _, metrics in results) / 3, rel=1e-4
    )
    assert output.metrics["custom/weight:sum"] == pytest.approx(
        total(metrics["custom/weight:sum"].item() for _, metrics in results), rel=1e-4
    )
    assert norm == pytest.approx(plain.gradient_norm(expected), rel=1e-4)


@uploads
def test_an_uploaded_loss_reads_a_scalar(service: tinker.ServiceClient) -> None:
    def scaled(logprobs: torch.Tensor, scale: torch.Tensor) -> Any:
        return logprobs.sum() * scale, {}

    run = create(service)
    handle = service.create_custom_loss(scaled, {"logprobs": 1, "scale": 0}).result()
    plain_loss = run.forward([datum(1)], "cross_entropy").result().metrics["loss:sum"]

    output = run.forward_backward_custom([datum(1, scale=torch.tensor(-2.0))], handle).result()

    assert output.metrics["loss:sum"] == pytest.approx(2 * plain_loss, rel=1e-5)


@uploads
def test_an_uploaded_loss_fails_alone_when_it_is_not_finite(service: tinker.ServiceClient) -> None:
    def bad(logprobs: torch.Tensor) -> Any:
        return torch.log(logprobs).sum(), {}  # of negative numbers

    run, undisturbed = create(service), create(service)
    handle = service.create_custom_loss(bad, {"logprobs": 1}).result()

    with pytest.raises(tinker.RequestFailedError) as caught:
        run.forward_backward_custom(batch(1), handle).result()

    assert caught.value.category == types.RequestErrorCategory.User
    after = [numbers(each.forward(batch(1), "cross_entropy").result()) for each in (run, undisturbed)]
    assert after[0] == after[1]
    assert "grad_norm" not in run.optim_step(ADAM).result().metrics


def policy(**changes: Any) -> types.Datum:
    inputs = {"target_tokens": [1, 2, 3, 4], "logprobs": [-6.0] * 4, "advantages": [1.0] * 4, **changes}
    given = {name: value for name, value in inputs.items() if value is not None}
    return types.Datum(model_input=types.ModelInput.from_ints([5, 6, 7, 8]), loss_fn_inputs=given)


REFUSED: dict[str, tuple[str, Callable[[], types.Datum], dict[str, float], str]] = {
    "an option it does not have": ("cross_entropy", lambda: datum(0), {"beta": 1.0}, "has no option 'beta'"),
    "a negative option": ("dro", policy, {"beta": -1.0}, "must be a number, 0 or more"),
    "clips the wrong way round": ("ppo", policy, {"clip_low_threshold": 2.0}, "is above"),
    "a missing input": ("ppo", lambda: policy(advantages=None), {}, "datum 0: input 'advantages' is missing"),
    "an infinite logprob": (
        "ppo",
        lambda: policy(logprobs=[float("-inf")] * 4),
        {},
        "datum 0, input 'logprobs'",
    ),
    "an empty mask": (
        "gspo",
        lambda: policy(sequence_ratio_mask=torch.zeros(4)),
        {},
        "datum 0: sequence_ratio_mask is",
    ),
}


@pytest.mark.parametrize("fault", REFUSED)
def test_what_a_loss_cannot_use_is_refused_with_a_reason(service: tinker.ServiceClient, fault: str) -> None:
    loss, make, config, words = REFUSED[fault]
    run = create(service)

    with pytest.raises(tinker.RequestFailedError) as caught:
        run.forward_backward([make()], loss, config or None).result()

    assert caught.value.category == types.RequestErrorCategory.User
    assert words in caught.value.message
