from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
import torch

from chockstone.backends.losses.losses import KINDS
from chockstone.wire.codecs.passes import Datum
from chockstone.wire.failures import BadRequest
from support.tiny_models import (
    Reference,
    TorchLoss,
    apply,
    assert_same_gradient,
    datum,
    gradient,
    lora_run,
    tiny_base,
    tiny_model,
)

Tensors = Mapping[str, torch.Tensor]
INPUTS = {
    "cross_entropy": ("weights",),
    "gspo": ("logprobs", "advantages", "sequence_ratio_mask"),
}


def cross_entropy(logprobs: torch.Tensor, inputs: Tensors) -> torch.Tensor:
    return -(inputs["weights"] * logprobs).sum()


def importance_sampling(logprobs: torch.Tensor, inputs: Tensors) -> torch.Tensor:
    return -(torch.exp(logprobs - inputs["logprobs"]) * inputs["advantages"]).sum()


def ppo(logprobs: torch.Tensor, inputs: Tensors) -> torch.Tensor:
    ratio, advantages = torch.exp(logprobs - inputs["logprobs"]), inputs["advantages"]
    return -torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages).sum()


def cispo(logprobs: torch.Tensor, inputs: Tensors) -> torch.Tensor:
    ratio = torch.exp(logprobs - inputs["logprobs"]).clamp(0.0, 4.0).detach()
    return -(ratio * logprobs * inputs["advantages"]).sum()


def dro(logprobs: torch.Tensor, inputs: Tensors) -> torch.Tensor:
    distance = (logprobs - inputs["logprobs"]) ** 2
    return -(logprobs * inputs["advantages"] - 0.5 * 0.05 * distance).sum()


def gspo(logprobs: torch.Tensor, inputs: Tensors) -> torch.Tensor:
    mask = inputs["sequence_ratio_mask"] != 0
    sequence = torch.exp((logprobs - inputs["logprobs"])[mask].mean()).detach()
    ratio, advantages = sequence * torch.exp(logprobs - logprobs.detach()), inputs["advantages"]
    return -torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages).sum()


LOSSES: dict[str, TorchLoss] = {
    "cross_entropy": cross_entropy,
    "importance_sampling": importance_sampling,
    "ppo": ppo,
    "cispo": cispo,
    "dro": dro,
    "gspo": gspo,
}


def batch(loss: str, targets: int | None) -> tuple[Datum, ...]:
    inputs = INPUTS.get(loss, ("logprobs", "advantages"))
    data = tuple(datum(n, targets=targets, seed=n, inputs=inputs) for n in (7, 3, 12))
    for one in data:
        if loss == "gspo":
            one.inputs["sequence_ratio_mask"][:2] = 0
    return data


@pytest.mark.parametrize("targets", [None, 3])
@pytest.mark.parametrize("loss", LOSSES)
def test_a_loss_and_its_gradient_are_those_of_plain_pytorch(loss: str, targets: int | None) -> None:
    run = lora_run(tiny_base())
    reference = Reference(tiny_model(), run)
    data = batch(loss, targets)

    result = apply(run, *data, loss=loss)

    expected_loss, expected_gradient = reference.backward(data, LOSSES[loss])
    assert result.metrics["loss:sum"] == pytest.approx(expected_loss, rel=1e-5, abs=1e-4)
    assert_same_gradient(gradient(run), expected_gradient)
    for one, logprobs in zip(data, result.logprobs, strict=True):
        assert logprobs.shape == one.inputs["target_tokens"].shape and logprobs.dtype == np.float32
        torch.testing.assert_close(torch.from_numpy(logprobs), reference.logprobs(one).detach(), rtol=1e-5, atol=1e-5)


def test_absent_weights_are_ones() -> None:
    base = tiny_base()
    ones = datum(5, inputs=("weights",))
    ones.inputs["weights"][:] = 1

    given = apply(lora_run(base), ones)
    absent = apply(lora_run(base), datum(5))

    assert given.metrics["loss:sum"] == absent.metrics["loss:sum"]


def test_clip_thresholds_per_token_take_the_place_of_the_options() -> None:
    base = tiny_base()
    plain = datum(6, inputs=("logprobs", "advantages"))
    own = Datum(plain.tokens, dict(plain.inputs))
    own.inputs["clip_low_threshold"] = np.full(6, 0.5, np.float32)
    own.inputs["clip_high_threshold"] = np.full(6, 0.9, np.float32)

    by_input = apply(lora_run(base), own, loss="ppo", clip_low_threshold=0.99)
    by_option = apply(lora_run(base), plain, loss="ppo", clip_low_threshold=0.5, clip_high_threshold=0.9)

    assert by_input.metrics["loss:sum"] == by_option.metrics["loss:sum"]
    assert by_input.metrics["clip_fraction:mean"] == by_option.metrics["clip_fraction:mean"]


@pytest.mark.parametrize(
    ("loss", "options", "message"),
    [
        ("nonsense", {}, "no loss 'nonsense'; this server has cross_entropy"),
        ("stable_reinforce", {}, "no loss 'stable_reinforce'"),
        ("cross_entropy", {"beta": 1.0}, "has no option 'beta'; it has no options"),
        ("ppo", {"clip": 1.0}, "no option 'clip'; its options are clip_low_threshold, clip_high_threshold"),
        ("ppo", {"clip_low_threshold": float("nan")}, "must be a number"),
        ("ppo", {"clip_low_threshold": "low"}, "must be a number"),
        ("ppo", {"clip_low_threshold": 2.0}, "is above clip_high_threshold"),
        ("custom", {}, "takes one option, loss_id"),
        ("custom", {"loss_id": "gone"}, "no custom loss 'gone'"),
    ],
)
def test_an_unknown_loss_or_option_is_refused_by_name(loss: str, options: dict[str, float | str], message: str) -> None:
    run = lora_run(tiny_base())

    with pytest.raises(BadRequest, match=message):
        apply(run, datum(3), loss=loss, **options)


def test_every_loss_metric_is_a_name_and_a_reduction() -> None:
    run = lora_run(tiny_base())

    names = {name for loss in KINDS for name in apply(run, *batch(loss, None), loss=loss).metrics}

    assert all(name.count(":") == 1 for name in names) and "loss:sum" in names
