# tensors carry their axes
"""Verification: whether a model computes packed batches correctly, found out by computing one.

Layers that mix positions otherwise than by the attention interface of transformers, such as convolutions, recurrent
layers and attention with biases of their own, mix the sequences of a packed batch. No list of names decides.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Final

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from chockstone.backends.training.packing.attention import NAME, attending
from chockstone.backends.training.packing.families import Content
from chockstone.backends.training.packing.layout import PackedBatch, pack

log = logging.getLogger(__name__)
_TOLERANCE: Final = {torch.float32: 1e-5, torch.bfloat16: 3e-2, torch.float16: 5e-3}  # of the largest hidden state
_MIXED: Final = 0.1  # of the difference that mixed sequences make
_PREFIX: Final = 16
_LENGTHS: Final = (18, 17, _PREFIX, 4, 3)  # the first three begin alike
Backbone = Callable[..., Any]  # Any: each architecture returns its own kind of output


def run_packed(backbone: Backbone, batch: PackedBatch) -> torch.Tensor:
    """The hidden states of the flat positions."""
    with attending(batch):
        output = backbone(input_ids=batch.tokens_F[None], position_ids=batch.positions_F[None], use_cache=False)
    hidden_FD: torch.Tensor = output.last_hidden_state[0]
    return hidden_FD


@torch.no_grad()
def can_pack(
    backbone: Backbone,
    *,
    attention: str | None,
    computing: Callable[[], AbstractContextManager[None]],
    vocab_size: int,
    device: torch.device,
) -> bool:
    """Whether each sequence of a packed batch has the hidden states that it has with padding.

    ``attention``: the name of the model's attention in transformers.
    """
    if attention != NAME:
        return False
    contents = [_content(number, length, vocab_size) for number, length in enumerate(_LENGTHS)]
    batch = pack(contents, device)

    def attempt(run: Callable[[], torch.Tensor]) -> torch.Tensor | None:
        with computing():  # which is not left by an error: that would end the processes of a sharded model
            try:
                return run()
            except Exception as error:  # noqa: BLE001  # each architecture refuses in its own way
                log.debug("packing refused error=%s: %s", type(error).__name__, error)
                return None

    tokens = [torch.from_numpy(content[:, 0].copy()).to(device) for content in contents]
    padded_BT = pad_sequence(tokens, batch_first=True)
    packed_RD = attempt(lambda: run_packed(backbone, batch)[batch.rows_R])
    mixed_RD = attempt(lambda: _run(backbone, torch.cat(tokens)[None])[0])
    if packed_RD is None or mixed_RD is None:
        return False
    with computing():
        alone_BTD = _run(backbone, padded_BT)
    alone_RD = torch.cat([alone_TD[: len(content)] for alone_TD, content in zip(alone_BTD, contents, strict=True)])
    difference, mixed = (float((each_RD - alone_RD).abs().max()) for each_RD in (packed_RD, mixed_RD))
    bound = _TOLERANCE.get(alone_RD.dtype, 1e-5) * float(alone_RD.abs().max())
    log.debug("packing compared difference=%.3g bound=%.3g mixed=%.3g", difference, bound, mixed)
    return difference <= bound and difference <= _MIXED * mixed


def _run(backbone: Backbone, tokens_BT: torch.Tensor) -> torch.Tensor:
    hidden_BTD: torch.Tensor = backbone(input_ids=tokens_BT, use_cache=False).last_hidden_state
    return hidden_BTD


def _content(number: int, length: int, vocab_size: int) -> Content:
    places = np.arange(length)
    seeds = np.where((places < _PREFIX) & (number < 3), 0, number + 1)
    tokens = (places * 7 + seeds * 13 + 1) % vocab_size
    return np.stack([tokens, tokens], axis=1)
