"""Random state: every generator a training step may draw from, as one thing to save and restore."""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from chockstone.extras import require


class RandomState:
    """The global generators of Python, numpy, torch and each CUDA device.

    Put one into the state to be saved. Generators of your own go in beside it, as
    ``generator.get_state()`` or ``rng.bit_generator.state``.
    """

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = {"python": random.getstate(), "numpy": np.random.get_state()}
        if (torch := sys.modules.get("torch")) is not None:
            state["torch"] = torch.get_rng_state()
            if torch.cuda.is_available():
                state["cuda"] = torch.cuda.get_rng_state_all()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        random.setstate(state["python"])
        np.random.set_state(state["numpy"])
        if "torch" in state:
            require("torch", "the generator of torch")
            import torch

            torch.set_rng_state(state["torch"])
            if "cuda" in state and torch.cuda.is_available():
                torch.cuda.set_rng_state_all(state["cuda"])
