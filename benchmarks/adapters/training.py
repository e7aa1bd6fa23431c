"""The training that every host saves: a model with the shapes of GPT-2 and an AdamW whose moments are filled.

It is state F of the checkpoint benchmark as live objects: 1.49 GB, or 93 MB in a quick run. Content is random.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import xxhash

from benchmarks.checkpoints.states import Shapes, training_shapes


class ShapedModel(torch.nn.Module):
    """Parameters of given names and shapes. ``forward`` is a loss that costs next to nothing and depends on all."""

    def __init__(self, shapes: Shapes, generator: torch.Generator) -> None:
        super().__init__()
        for name, shape in shapes.items():
            *path, last = name.split(".")
            module: torch.nn.Module = self
            for part in path:
                if part not in module._modules:
                    module.add_module(part, torch.nn.Module())
                module = module.get_submodule(part)
            module.register_parameter(last, torch.nn.Parameter(torch.randn(shape, generator=generator)))

    def forward(self, scale: torch.Tensor) -> torch.Tensor:
        firsts = torch.stack([parameter.reshape(-1)[0] for parameter in self.parameters()])
        return firsts.sum() * scale.mean()


@dataclass(frozen=True, slots=True)
class Training:
    model: ShapedModel
    optimizer: torch.optim.AdamW

    @property
    def tensors(self) -> list[torch.Tensor]:
        """Weights and both moments of each."""
        moments = [self.optimizer.state[parameter] for parameter in self.model.parameters()]
        found = [parameter.detach() for parameter in self.model.parameters()]
        return found + [moment[name] for name in ("exp_avg", "exp_avg_sq") for moment in moments]

    @property
    def size_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors)

    def digest(self) -> str:
        """Equal for trainings with equal weights and moments."""
        hasher = xxhash.xxh3_128()
        for tensor in self.tensors:
            hasher.update(tensor.numpy().data)
        return hasher.hexdigest()

    def clear(self) -> None:
        """All weights and moments become zero, so that a restore has something to do."""
        with torch.no_grad():
            for tensor in self.tensors:
                tensor.zero_()


def make_training(*, quick: bool) -> Training:
    generator = torch.Generator().manual_seed(7)
    model = ShapedModel(training_shapes("F-quick" if quick else "F"), generator)
    return Training(model, fill_optimizer(model, generator))


def fill_optimizer(model: ShapedModel, generator: torch.Generator) -> torch.optim.AdamW:
    """An AdamW with moments, as after a step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for parameter in model.parameters():
        optimizer.state[parameter] = {
            "step": torch.tensor(1.0),
            "exp_avg": torch.randn(parameter.shape, generator=generator),
            "exp_avg_sq": torch.rand(parameter.shape, generator=generator),
        }
    return optimizer
