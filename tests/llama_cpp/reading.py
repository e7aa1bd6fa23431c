"""Reads a GGUF file with llama.cpp. Run by the Python that has it, with a request on standard input.

The request has the ``path`` of a file, and ``tokens`` whose logits are asked for, or ``texts`` whose token ids are.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from llama_cpp import Llama

F32 = 0  # the type of cached keys and values


def read_logits(path: str, tokens: list[int]) -> list[list[float]]:
    """Of every position, computed in float32."""
    model = Llama(
        path,
        n_ctx=64,
        n_batch=64,
        n_ubatch=64,
        n_threads=1,
        n_threads_batch=1,
        logits_all=True,
        type_k=F32,
        type_v=F32,
        flash_attn=False,
        verbose=False,
    )
    model.eval(tokens)
    found: list[list[float]] = model.scores[: len(tokens)].tolist()
    return found


def read_ids(path: str, texts: list[str]) -> list[list[int]]:
    """With the tokens that the model adds to a text; special tokens in the text are read as such."""
    model = Llama(path, vocab_only=True, verbose=False)
    return [model.tokenize(text.encode(), add_bos=True, special=True) for text in texts]


request: dict[str, Any] = json.load(sys.stdin)
answer: Any = (
    read_logits(request["path"], request["tokens"])
    if "tokens" in request
    else read_ids(request["path"], request["texts"])
)
print(json.dumps(answer))
