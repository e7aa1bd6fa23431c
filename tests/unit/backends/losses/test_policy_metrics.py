from __future__ import annotations

import numpy as np
import pytest

from support.tiny_models import apply, datum, lora_run, tiny_base


def test_policy_metrics_say_how_far_the_model_has_moved() -> None:
    run = lora_run(tiny_base())
    silent = datum(4, seed=2, inputs=("logprobs", "advantages"))
    silent.inputs["advantages"][:] = 0
    spoken = datum(5, seed=3, inputs=("logprobs", "advantages"))

    result = apply(run, silent, spoken, loss="ppo")

    ratio = np.exp(result.logprobs[1].astype(np.float64) - spoken.inputs["logprobs"])
    outside = (ratio < 0.8) | (ratio > 1.2)
    assert result.metrics["ratio:mean"] == pytest.approx((1 + ratio.mean()) / 2, rel=1e-6)
    assert result.metrics["ratio:max"] == pytest.approx(max(1, ratio.max()))
    assert result.metrics["clip_fraction:mean"] == pytest.approx(outside.mean() / 2)
    assert result.metrics["kl:mean"] == pytest.approx(
        (spoken.inputs["logprobs"] - result.logprobs[1]).mean() / 2, rel=1e-4
    )
