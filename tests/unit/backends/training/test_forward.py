from __future__ import annotations

import numpy as np
import pytest

from support.backends.training import BATCH
from support.tiny_models import (
    apply,
    assert_same_gradient,
    datum,
    gradient,
    lora_run,
    tiny_base,
)


@pytest.mark.parametrize("budget", [1, 30, 64, 10_000])
def test_what_shares_a_micro_batch_does_not_change_the_numbers(budget: int) -> None:
    base = tiny_base()
    alone, together = lora_run(base), lora_run(base)

    expected = [apply(alone, one).logprobs[0] for one in BATCH]
    actual = apply(together, *BATCH, budget=budget).logprobs

    for one, other in zip(actual, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
    assert_same_gradient(gradient(together), gradient(alone))


def test_datums_with_different_numbers_of_targets_may_share_a_request() -> None:
    run = lora_run(tiny_base())
    data = (datum(5, seed=1), datum(4, targets=3, seed=2), datum(6, targets=1, seed=3), datum(3, targets=3, seed=4))

    result = apply(run, *data)

    assert [logprobs.shape for logprobs in result.logprobs] == [(5,), (4, 3), (6, 1), (3, 3)]
    np.testing.assert_allclose(result.logprobs[3], apply(run, data[3]).logprobs[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("loss", "inputs"),
    [("cross_entropy", ("weights",)), ("gspo", ("logprobs", "advantages", "sequence_ratio_mask"))],
)
def test_logits_in_many_chunks_give_the_same_as_in_one(
    loss: str, inputs: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    base = tiny_base()
    whole, chunked = lora_run(base), lora_run(base)
    data = tuple(datum(n, seed=n, inputs=inputs) for n in (7, 3, 12))
    for one in data:
        if loss == "gspo":
            one.inputs["sequence_ratio_mask"][:2] = 0

    expected = apply(whole, *data, loss=loss)
    monkeypatch.setattr("chockstone.backends.training.forward._LOGITS_BYTES", 4 * 97 * 5)
    actual = apply(chunked, *data, loss=loss)

    assert actual.metrics["loss:sum"] == pytest.approx(expected.metrics["loss:sum"], rel=1e-5)
    assert_same_gradient(gradient(chunked), gradient(whole))
