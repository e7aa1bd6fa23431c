"""Weighted tokens: what the sum of a loss is divided by to get its mean per token."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from chockstone.wire.codecs.passes import Datum


def weighted_tokens(data: Sequence[Datum], loss: str) -> float | None:
    """The sum of the weights of a cross entropy; of a policy loss the tokens with an advantage; None of others.

    None also if a weight is negative, as in the second pass of a loss that the client computes: its sum is no loss.
    """
    if loss == "cross_entropy":
        given = [datum.inputs["weights"].ravel() for datum in data if "weights" in datum.inputs]
        plain = sum(datum.inputs["target_tokens"].size for datum in data if "weights" not in datum.inputs)
        weights = np.concatenate([*given, np.zeros(0, np.float32)])
        return None if (weights < 0).any() else float(plain + weights.sum(dtype=np.float64))
    advantages = [datum.inputs["advantages"].ravel() for datum in data if "advantages" in datum.inputs]
    return float(np.count_nonzero(np.concatenate(advantages))) if loss != "custom" and advantages else None
