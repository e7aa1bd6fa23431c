"""Bodies of requests, as a client would have sent them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import orjson

from chockstone.wire.codecs.pass_request import pass_from_json
from support.tiny_models import VOCABULARY


def pass_body(*lengths: int, forward_only: bool = False, seed: int = 0) -> bytes:
    rng = np.random.default_rng(seed)
    data = []
    for length in lengths:
        tokens = rng.integers(0, VOCABULARY, length + 1).tolist()
        weights = rng.random(length).tolist()
        data.append(
            {
                "model_input": {"chunks": [{"type": "encoded_text", "tokens": tokens[:-1]}]},
                "loss_fn_inputs": {
                    "target_tokens": {"data": tokens[1:], "dtype": "int64", "shape": [length]},
                    "weights": {"data": weights, "dtype": "float32", "shape": [length]},
                },
            }
        )
    key = "forward_input" if forward_only else "forward_backward_input"
    return pass_from_json({"model_id": "run", "seq_id": 1, key: {"data": data, "loss_fn": "cross_entropy"}})


def sample_body(prompt: Sequence[int], *, num_samples: int = 1, max_tokens: int = 2) -> bytes:
    return orjson.dumps(
        {
            "prompt": {"chunks": [{"type": "encoded_text", "tokens": list(prompt)}]},
            "num_samples": num_samples,
            "sampling_params": {"max_tokens": max_tokens, "temperature": 1.0},
        }
    )
