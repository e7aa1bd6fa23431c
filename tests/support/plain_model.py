"""Plain PyTorch: what a model directory says, computed with transformers alone, to hold a server against.

The losses are written here once more, from their definitions. N positions, K targets each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

Inputs = Mapping[str, torch.Tensor]


class PlainModel:
    def __init__(self, directory: Path) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager")

    def logprobs(self, tokens: list[int], targets: torch.Tensor) -> torch.Tensor:
        """Of ``targets`` [N] or [N, K], in that shape and differentiable."""
        logits = self.model(torch.tensor([tokens])).logits[0]
        rows = torch.log_softmax(logits, dim=-1).gather(1, targets.reshape(len(tokens), -1))
        return rows.reshape(targets.shape)

    def gradient_norm(self, loss: torch.Tensor) -> float:
        """Of a loss in all weights together."""
        gradients = torch.autograd.grad(loss, list(self.model.parameters()), allow_unused=True)
        return float(torch.sqrt(sum((g.double() ** 2).sum() for g in gradients if g is not None)))


def cross_entropy(logp: torch.Tensor, x: Inputs) -> torch.Tensor:
    return -(x["weights"] * logp).sum()


def importance_sampling(logp: torch.Tensor, x: Inputs) -> torch.Tensor:
    return -(torch.exp(logp - x["logprobs"]) * x["advantages"]).sum()


def ppo(logp: torch.Tensor, x: Inputs, low: float = 0.8, high: float = 1.2) -> torch.Tensor:
    ratio = torch.exp(logp - x["logprobs"])
    return -torch.min(ratio * x["advantages"], ratio.clamp(low, high) * x["advantages"]).sum()


def cispo(logp: torch.Tensor, x: Inputs, low: float = 0.0, high: float = 4.0) -> torch.Tensor:
    ratio = torch.exp(logp - x["logprobs"]).detach().clamp(low, high)
    return -(ratio * logp * x["advantages"]).sum()


def dro(logp: torch.Tensor, x: Inputs, beta: float = 0.05) -> torch.Tensor:
    return -(logp * x["advantages"] - beta / 2 * (logp - x["logprobs"]) ** 2).sum()


def gspo(logp: torch.Tensor, x: Inputs, low: float = 0.8, high: float = 1.2) -> torch.Tensor:
    kept = x["sequence_ratio_mask"] != 0
    sequence = torch.exp((logp - x["logprobs"])[kept].mean()).detach()
    ratio = sequence * logp.exp() / logp.exp().detach()
    return -torch.min(ratio * x["advantages"], ratio.clamp(low, high) * x["advantages"]).sum()


LOSSES: dict[str, Callable[..., torch.Tensor]] = {
    function.__name__: function for function in (cross_entropy, importance_sampling, ppo, cispo, dro, gspo)
}


def total(losses: Iterable[torch.Tensor]) -> Any:  # Any: sum() of tensors is typed with its start, 0
    return sum(losses)
