from __future__ import annotations

import pytest
import torch
from transformers import PreTrainedModel

from support.sampling.making import Served, gpt_neox, llama, qwen3


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="package")
def base() -> PreTrainedModel:
    return qwen3()


@pytest.fixture(scope="package")
def fused(base: PreTrainedModel) -> Served:
    return Served(base)


@pytest.fixture(scope="package", params=["qwen3", "llama", "gpt_neox"])
def served(request: pytest.FixtureRequest) -> Served:
    """Two architectures on the fused network and one on the generic."""
    return Served({"qwen3": qwen3, "llama": llama, "gpt_neox": gpt_neox}[request.param]())
