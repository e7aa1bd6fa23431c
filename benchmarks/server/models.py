"""Models: the random ones that the server and the baselines both read, and token ids to feed them."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

from benchmarks.server.scale import Scale
from chockstone.cli.models.making import make_model
from chockstone.cli.models.shape import ModelShape

Tokens = list[int]
SMALL, LARGE, WHOLE = "small", "large", "whole"


@dataclass(frozen=True, slots=True)
class Model:
    name: str  # the server's name for it
    directory: Path
    shape: ModelShape

    @property
    def title(self) -> str:
        return f"{self.shape.parameters / 1e6:.0f}M"

    def adapter_parameters(self, rank: int) -> int:
        """Of a LoRA on every linear layer inside the blocks."""
        matrices = (size for name, size in self.shape.tensors() if "_proj." in name)
        return sum(rank * (height + width) for height, width in matrices)

    def draw(self, count: int, length: int, *, seed: int) -> list[Tokens]:
        source = random.Random(seed)
        return [[source.randrange(self.shape.vocab_size) for _ in range(length)] for _ in range(count)]


def make(name: str, directory: Path, scale: Scale) -> Model:
    parameters = {SMALL: scale.small_parameters, LARGE: scale.large_parameters, WHOLE: scale.full_parameters}[name]
    made = make_model(directory / name, architecture="qwen3", parameters=parameters)
    return Model(name, made.directory, made.shape)
