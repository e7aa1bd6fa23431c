"""A vLLM server that answers over a real base model, as a server does that ignores its adapters."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from support.vllm.stub import PROBE, Floats, Stub


class ModelStub(Stub):
    def __init__(self, name: str, directory: Path) -> None:
        super().__init__(models=(name,), has_head=True, context=256)
        self._model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
        self._logits = lru_cache(maxsize=4096)(self._compute)  # the probe is the same for all weights

    def logprobs(self, text: list[int], adapter: str, *, temperature: float) -> Floats:
        logits = self._logits(tuple(text))
        if adapter == PROBE:  # the only adapter that it applies: of the output layer
            logits = logits.flip(0)
        return np.asarray(torch.log_softmax(logits / temperature, dim=-1))

    def _compute(self, text: tuple[int, ...]) -> torch.Tensor:
        with torch.inference_mode():
            return self._model(torch.tensor([text])).logits[0, -1].double()
