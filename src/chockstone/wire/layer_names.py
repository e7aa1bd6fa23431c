"""Layer names: which part of a model a layer belongs to, by its name in files and in memory."""

from __future__ import annotations

import re
from typing import Final

# Layers are in one of the numbered blocks, and some there of the attention. The only layer outside is the output layer.
IN_A_BLOCK: Final = re.compile(r"\.\d+\.")
ATTENTION_LAYERS: Final = re.compile(r"attn|attention", re.IGNORECASE)
