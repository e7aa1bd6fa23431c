"""Models: random weights that the server and the baselines both read, and token ids to feed them."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

from chockstone.cli.models.making import make_model
from chockstone.cli.models.shape import ModelShape

Tokens = list[int]


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

    def rank_for(self, state_bytes: int) -> int:
        """The rank whose adapter takes about as much with both moments, in float32."""
        return max(1, round(state_bytes / (3 * 4 * self.adapter_parameters(1))))

    def draw(self, count: int, length: int, *, seed: int) -> list[Tokens]:
        source = random.Random(seed)
        return [[source.randrange(self.shape.vocab_size) for _ in range(length)] for _ in range(count)]


def new_model(name: str, directory: Path, *, parameters: int) -> Model:
    """Written to ``directory/name``."""
    made = make_model(directory / name, architecture="qwen3", parameters=parameters)
    return Model(name, made.directory, made.shape)
