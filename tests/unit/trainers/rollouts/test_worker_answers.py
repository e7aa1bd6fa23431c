"""The worker refuses samples that would ruin the weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from chockstone.trainers import (
    TrainerError,
)
from support.trainers.fakes import Digits, FakeSampler, FakeServer, Ledger, trainer


@pytest.mark.parametrize(
    "logprobs",
    [None, [], [None, -1.0], [-1.0, float("nan")], [float("-inf"), -1.0], [-1.0] * 3],
    ids=["none", "empty", "a none", "nan", "infinite", "too many"],
)
async def test_logprobs_that_cannot_be_trained_with_are_refused(
    logprobs: Any, server: FakeServer, ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sequence = SimpleNamespace(tokens=[1, 2], logprobs=logprobs, stop_reason="stop")
    monkeypatch.setattr(FakeSampler, "sample_async", answers([sequence, sequence]))

    with pytest.raises(TrainerError, match="no finite logprob of the policy for each of the 2 tokens"):
        await trainer(tmp_path, ledger).run()


async def test_base_logprobs_of_another_length_are_refused(
    server: FakeServer, ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def short(self: object, prompt: Any) -> list[float]:
        return [-1.0] * (len(prompt.to_ints()) - 1)

    monkeypatch.setattr(FakeSampler, "compute_logprobs_async", short)

    with pytest.raises(TrainerError, match="logprob of the base model"):
        await trainer(tmp_path, ledger, kl_coefficient=0.1).run()


async def test_fewer_samples_than_asked_for_are_refused(
    server: FakeServer, ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sequence = SimpleNamespace(tokens=[1], logprobs=[-1.0], stop_reason="stop")
    monkeypatch.setattr(FakeSampler, "sample_async", answers([sequence]))

    with pytest.raises(TrainerError, match=r"gave 1 samples of problem 'p\d', not 2"):
        await trainer(tmp_path, ledger).run()


async def test_completions_without_tokens_are_trained_on_as_any(
    server: FakeServer, ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = SimpleNamespace(tokens=[], logprobs=[], stop_reason="stop")
    talking = SimpleNamespace(tokens=[5], logprobs=[-1.0], stop_reason="stop")
    monkeypatch.setattr(FakeSampler, "sample_async", answers([silent, talking]))
    environment = Digits()
    environment.judge = lambda problem, completion: float(len(completion.tokens))

    await trainer(tmp_path, ledger, environment=environment, kl_coefficient=0.1, steps=3).run()
    await trainer(tmp_path, ledger, environment=environment, kl_coefficient=0.1, steps=5).run()

    assert [row["tokens"] for row in ledger.rows] == [0, 1] * 10


def answers(sequences: list[SimpleNamespace]) -> Callable[..., Any]:
    async def sample(*_: object, **__: object) -> SimpleNamespace:
        return SimpleNamespace(sequences=sequences)

    return sample
