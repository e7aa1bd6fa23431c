from __future__ import annotations

from typing import Any

import pytest
import torch

from chockstone.backends.training.flat_parameters import measure_norm
from chockstone.backends.training.optimizers import Optimizer, OptimStep, clip
from chockstone.wire.failures import BadRequest

SIZE = 1000


def gradients(count: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(SIZE, generator=generator) for _ in range(count)]


@pytest.mark.parametrize("fused", [True, False])
def test_adamw_is_pytorchs_with_options_that_change_every_step(fused: bool) -> None:
    weights = torch.randn(SIZE, generator=torch.Generator().manual_seed(0))
    theirs = torch.nn.Parameter(weights.clone())
    reference = torch.optim.AdamW([theirs], fused=fused)
    optimizer = Optimizer("adamw")

    for count, grad in enumerate(gradients(6)):
        step = OptimStep(learning_rate=0.01 / (count + 1), beta1=0.8, beta2=0.9 + count / 100, weight_decay=0.1 * count)
        reference.param_groups[0].update(
            lr=step.learning_rate, betas=(step.beta1, step.beta2), eps=step.eps, weight_decay=step.weight_decay
        )
        theirs.grad = grad.clone()
        reference.step()
        optimizer.update(weights, grad.clone(), step)

    if fused:
        assert torch.equal(weights, theirs)
    torch.testing.assert_close(weights, theirs.detach(), rtol=1e-6, atol=1e-7)


def test_sgd_is_pytorchs() -> None:
    weights = torch.randn(SIZE, generator=torch.Generator().manual_seed(0))
    theirs = torch.nn.Parameter(weights.clone())
    reference = torch.optim.SGD([theirs], lr=0.1, momentum=0.9, weight_decay=0.01)
    optimizer = Optimizer("sgd")

    for grad in gradients(5):
        theirs.grad = grad.clone()
        reference.step()
        optimizer.update(
            weights, grad.clone(), OptimStep(family="sgd", learning_rate=0.1, momentum=0.9, weight_decay=0.01)
        )

    torch.testing.assert_close(weights, theirs.detach(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("max_norm", [0.0, 1.0, 1e6])
def test_clipping_is_pytorchs(max_norm: float) -> None:
    (grad,) = gradients(1)
    theirs = torch.nn.Parameter(torch.zeros(SIZE))
    theirs.grad = grad.clone()
    expected = torch.nn.utils.clip_grad_norm_([theirs], max_norm or float("inf"))

    norm = measure_norm(grad)
    clip(grad, max_norm, norm=norm)

    assert norm == pytest.approx(float(expected), rel=1e-6)
    torch.testing.assert_close(grad, theirs.grad, rtol=1e-6, atol=0)


def test_a_norm_beyond_float32_is_still_a_number() -> None:
    grad = torch.full((100,), 1e30)

    norm = measure_norm(grad)
    clip(grad, 1.0, norm=norm)

    assert norm == pytest.approx(1e31, rel=1e-6)
    assert grad.norm().item() == pytest.approx(1.0, rel=1e-4)


def test_parameters_are_parsed_with_the_protocols_defaults() -> None:
    assert OptimStep.parse({}) == OptimStep(learning_rate=1e-4, beta1=0.9, beta2=0.95, eps=1e-12)
    assert OptimStep.parse({"type": "sgd", "learning_rate": 1, "momentum": 0.5}).family == "sgd"


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (
            {"type": "dimuon", "learning_rate": 1e-3},
            "optimizer 'dimuon' is not supported here; choose one of adamw, sgd",
        ),
        ({"type": ["adamw"]}, "not supported"),
        ({"lr": 1e-3}, "adamw takes no 'lr'; it takes learning_rate"),
        ({"momentum": 0.9}, "adamw takes no 'momentum'"),
        ({"type": "sgd"}, "needs a learning_rate"),
        ({"learning_rate": float("nan")}, "learning_rate must be a number finite and not negative"),
        ({"learning_rate": float("inf")}, "learning_rate must be"),
        ({"learning_rate": -1.0}, "learning_rate must be"),
        ({"learning_rate": "high"}, "learning_rate must be"),
        ({"learning_rate": True}, "learning_rate must be"),
        ({"learning_rate": 1e60}, "too large"),
        ({"learning_rate": None}, "learning_rate must be"),
        ({"beta2": 1.0}, "beta2 must be a number from 0 up to but not including 1"),
        ({"eps": 0.0}, "eps must be greater than 0"),
        ({"grad_clip_norm": -1}, "grad_clip_norm must be"),
    ],
)
def test_a_parameter_out_of_range_is_refused_by_name(params: dict[str, Any], message: str) -> None:
    with pytest.raises(BadRequest, match=message):
        OptimStep.parse(params)
