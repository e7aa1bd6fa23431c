"""Policy metrics: how far a trained policy is from the one that sampled its data.

Only positions with an advantage count. A mean is taken over the means of the datums, because clients weight the chunks
of a batch by their number of datums.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from chockstone.backends.losses.losses import CLIPS, BuiltInLoss
from chockstone.wire.codecs.passes import Datum

Floats = npt.NDArray[np.float32]
_LARGEST_EXPONENT: Final = 700.0  # the exponential of more overflows


def policy_metrics(data: Sequence[Datum], logprobs: Sequence[Floats], loss: BuiltInLoss) -> Mapping[str, float]:
    ratios: list[float] = []
    extremes = [1.0]
    divergences: list[float] = []
    clipped: list[float] = []
    for datum, model in zip(data, logprobs, strict=True):
        counted = datum.inputs["advantages"] != 0
        ratio = _ratio(datum.inputs, model, whole_datum=loss.whole_datum)[counted]
        if ratio.size == 0:
            ratios.append(1.0)
            divergences.append(0.0)
            clipped.append(0.0)
            continue
        ratios.append(float(ratio.mean()))
        extremes += [float(ratio.min()), float(ratio.max())]
        divergences.append(float((datum.inputs["logprobs"].astype(np.float64) - model)[counted].mean()))
        if CLIPS[0] in loss.options:
            low, high = (np.broadcast_to(datum.inputs.get(name, loss.default(name)), model.shape) for name in CLIPS)
            clipped.append(float(((ratio < low[counted]) | (ratio > high[counted])).mean()))
    metrics = {
        "ratio:mean": float(np.mean(ratios)),
        "ratio:min": min(extremes),
        "ratio:max": max(extremes),
        "kl:mean": float(np.mean(divergences)),  # of the sampled tokens: E[log q - log p]
    }
    return metrics | ({"clip_fraction:mean": float(np.mean(clipped))} if CLIPS[0] in loss.options else {})


def _ratio(inputs: Mapping[str, Any], model: Floats, *, whole_datum: bool) -> npt.NDArray[np.float64]:
    difference = model.astype(np.float64) - inputs["logprobs"]
    if whole_datum:
        mask = inputs["sequence_ratio_mask"] != 0
        difference = np.full(model.shape, difference[mask].mean() if mask.any() else 0.0)
    ratio: npt.NDArray[np.float64] = np.exp(np.minimum(difference, _LARGEST_EXPONENT))
    return ratio
