"""Model names: a base model as clients name it.

``NAME`` is a model that the server has. ``NAME:peft:N`` is the same model with a context of at most N tokens: hosted
Tinker sells long contexts under such names, and scripts written for it use them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_LIMITED: Final = re.compile(r"(.+):peft:([1-9][0-9]{0,8})", re.ASCII)


@dataclass(frozen=True, slots=True)
class ModelName:
    base: str  # what the server has
    max_context: int | None = None  # None: as long as the model's own

    @classmethod
    def parse(cls, name: str) -> ModelName:
        """Of any text. Only a name that ends in ``:peft:N`` has a limit."""
        if (found := _LIMITED.fullmatch(name)) is None:
            return cls(name)
        return cls(found[1], int(found[2]))
