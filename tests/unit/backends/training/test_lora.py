from __future__ import annotations

import math

import pytest
import torch
from transformers.pytorch_utils import Conv1D

from chockstone.backends.run_spec import RunSpec
from chockstone.backends.training.lora import AdaptableLinear, make_adaptable
from chockstone.backends.training.run import TrainedRun
from chockstone.sampling.adapter import LowRank
from chockstone.sampling.experts.modules import AdaptableExperts
from chockstone.wire.failures import BadRequest
from support.tiny_experts import ARCHITECTURES, experts_base
from support.tiny_models import tiny_base

ATTENTION = {"q_proj", "k_proj", "v_proj", "o_proj"}
MLP = {"gate_proj", "up_proj", "down_proj"}


def endings(run: TrainedRun) -> set[str]:
    return {name.rpartition(".")[2] for name in run.adapter().layers}


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ((True, True, True), ATTENTION | MLP | {"lm_head"}),
        ((True, False, False), ATTENTION),
        ((False, True, False), MLP),
        ((False, False, True), {"lm_head"}),
    ],
)
def test_flags_choose_the_layers(flags: tuple[bool, bool, bool], expected: set[str], tied: bool) -> None:
    attn, mlp, unembed = flags

    run = TrainedRun(
        tiny_base(tied=tied), RunSpec(rank=2, seed=0, train_attn=attn, train_mlp=mlp, train_unembed=unembed)
    )

    assert endings(run) == expected


def test_initial_matrices_depend_on_seed_and_layer_alone() -> None:
    base = tiny_base()
    torch.manual_seed(1)
    first = TrainedRun(base, RunSpec(rank=4, seed=5)).state()["weights"]
    torch.manual_seed(2)
    again = TrainedRun(base, RunSpec(rank=4, seed=5, train_mlp=False)).state()["weights"]
    other = TrainedRun(base, RunSpec(rank=4, seed=6)).state()["weights"]

    assert all(torch.equal(weight, first[name]) for name, weight in again.items())
    for name, weight in first.items():
        if name.endswith("lora_B"):
            assert not weight.any()
        else:
            bound = 1 / math.sqrt(weight.shape[1])
            assert 0.9 * bound < weight.abs().max() <= bound
            assert not torch.equal(weight, other[name])


def test_making_a_run_draws_nothing_from_the_global_generator() -> None:
    base = tiny_base()
    before = torch.get_rng_state()

    TrainedRun(base, RunSpec(rank=4, seed=5))

    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rank": -1}, "rank must be a whole number from 0 to 4096, not -1"),
        ({"rank": 5000}, "rank must be"),
        ({"rank": 4.0}, "rank must be"),
        ({"seed": 2**64}, "seed must be"),
        ({"train_mlp": 1}, "train_mlp must be true or false"),
        ({"optimizer": "dimuon"}, "'dimuon' is not supported here; choose one of adamw, sgd"),
        ({"train_attn": False, "train_mlp": False, "train_unembed": False}, "turn on at least one"),
        ({"alpha": 3}, "has no 'alpha'"),
    ],
)
def test_a_specification_out_of_range_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(BadRequest, match=message):
        RunSpec.from_json({"rank": 4, "seed": 0, **changes})


def test_a_specification_survives_json() -> None:
    spec = RunSpec(rank=4, seed=-3, train_mlp=False, optimizer="sgd")

    assert RunSpec.from_json(spec.to_json()) == spec


def test_layers_that_store_their_weight_transposed_are_adapted() -> None:
    plain = Conv1D(5, 3)
    x_NI, down_RI, up_OR = torch.randn(2, 4, 3), torch.randn(2, 3), torch.randn(5, 2)
    expected = plain(x_NI)
    layer = make_adaptable(torch.nn.Sequential(plain))["0"]
    assert isinstance(layer, AdaptableLinear)

    unchanged = layer(x_NI)
    layer.active, layer.scale = LowRank(down_RI, up_OR), 0.5

    assert torch.equal(unchanged, expected)
    assert (layer.in_features, layer.out_features) == (3, 5)
    torch.testing.assert_close(layer(x_NI), expected + 0.5 * x_NI @ down_RI.T @ up_OR.T)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_train_mlp_trains_routed_experts_and_never_their_router(architecture: str) -> None:
    base = experts_base(architecture)

    run = TrainedRun(base, RunSpec(rank=2, seed=0, train_attn=False, train_unembed=False))

    weights = run.state()["weights"]
    experts = {name for name, weight in weights.items() if weight.dim() == 3}
    assert {name.rsplit(".", 2)[1] for name in experts} == {"gate_up_proj", "down_proj"} and len(experts) == 8
    assert not any("router" in name or name.endswith("mlp.gate.lora_A") for name in weights)
    for name in experts:
        if name.endswith("lora_A"):
            bound = 1 / math.sqrt(weights[name].shape[2])
            assert 0.9 * bound < weights[name].abs().max() <= bound
            assert not torch.equal(weights[name][0], weights[name][1])


def test_a_run_of_an_earlier_version_has_no_matrices_for_experts() -> None:
    """Those versions trained the shared experts alone, and their journals are replayed with the same layers."""
    spec = RunSpec.from_json({"rank": 2, "seed": 0, "train_attn": False, "train_unembed": False})

    run = TrainedRun(experts_base("qwen3_5_moe_text"), spec)

    assert all(weight.dim() == 2 for weight in run.state()["weights"].values())


def test_experts_that_compute_otherwise_than_expected_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AdaptableExperts, "_adapted", lambda self, x, *_: x)

    base = experts_base()

    assert not any(name.endswith("gate_up_proj") for name in base.layers)
    with pytest.raises(BadRequest, match="train_mlp is on, but this base model has no layers there"):
        TrainedRun(base, RunSpec(rank=2, seed=0))


def test_an_adaptable_layer_keeps_its_weights_names_and_is_made_once() -> None:
    linear = torch.nn.Linear(3, 5)
    model = torch.nn.Sequential(linear)
    names = list(model.state_dict())

    first = make_adaptable(model)
    again = make_adaptable(model)

    assert first["0"] is again["0"] is linear
    assert isinstance(linear, AdaptableLinear) and list(model.state_dict()) == names
