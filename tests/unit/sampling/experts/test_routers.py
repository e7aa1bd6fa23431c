from __future__ import annotations

import pytest
import torch
from torch import nn

from chockstone.sampling.experts.modules import make_experts_adaptable
from chockstone.sampling.experts.routers import FREE, Routers, RoutingRecorder, find_routers
from support.tiny_experts import ARCHITECTURES, tiny_experts
from support.tiny_models import tiny_model

TOKENS = torch.arange(10)[None] * 3


class Watched:
    """A model and its routers."""

    def __init__(self, architecture: str) -> None:
        self.model = tiny_experts(architecture).requires_grad_(False)
        self.experts = make_experts_adaptable(self.model)
        self.routers = find_routers(self.model, self.experts, self.run)

    def run(self) -> torch.Tensor:
        logits: torch.Tensor = self.model(input_ids=TOKENS, use_cache=False).logits
        return logits

    def chosen(self, forced: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits, and the experts by layer."""
        recorder = RoutingRecorder(self.experts.values())
        with recorder.recording(), self.routers.forced(forced):
            logits = self.run()
        return logits, recorder.take()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_routers_choose_what_is_forced_on_them(architecture: str) -> None:
    watched = Watched(architecture)
    logits, own = watched.chosen()
    others = (own + 1) % watched.routers.experts
    some = others.clone()
    some[:, 4:] = FREE

    assert len(watched.routers) == 2 and own.shape == (2, 10, 2)
    assert torch.equal(watched.chosen(own)[0], logits)
    forced_logits, forced = watched.chosen(others)
    assert torch.equal(forced, others) and not torch.allclose(forced_logits, logits, atol=1e-3)
    partly = watched.chosen(some)[1]
    assert torch.equal(partly[:, :4], others[:, :4]) and torch.equal(partly[0, 4:], own[0, 4:])
    assert torch.equal(watched.chosen()[0], logits)


def test_gradients_flow_through_the_weights_of_forced_experts() -> None:
    watched = Watched("qwen3_moe")
    weight = next(p for name, p in watched.model.named_parameters() if name.endswith("mlp.gate.weight"))
    weight.requires_grad_()
    _, own = watched.chosen()

    with watched.routers.forced(own):
        watched.run().square().sum().backward()

    assert weight.grad is not None and bool(weight.grad.any())


def test_a_model_without_experts_has_no_routers() -> None:
    model = tiny_model()

    routers = find_routers(model, make_experts_adaptable(model), lambda: torch.zeros(1))

    assert not routers
    with routers.forced(None):
        pass


def test_experts_whose_router_cannot_be_forced_are_not_replayed() -> None:
    """Such a router does not choose by ``topk``."""
    model = tiny_experts().requires_grad_(False)

    class Fixed(nn.Module):
        def forward(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
            chosen = torch.tensor([0, 1]).expand(len(hidden), 2).clone()
            return hidden, torch.full(chosen.shape, 0.5), chosen

    for layer in model.model.layers:
        layer.mlp.gate = Fixed()

    routers = find_routers(
        model, make_experts_adaptable(model), lambda: model(input_ids=TOKENS, use_cache=False).logits
    )

    assert isinstance(routers, Routers) and not routers
