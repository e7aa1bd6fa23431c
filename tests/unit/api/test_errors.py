from __future__ import annotations

from typing import Any

import pytest

from chockstone.api.context import Context
from chockstone.engine.journal.writer import Stalled
from support.api.users import User, refusal


def step(run_id: str, seq_id: int) -> dict[str, Any]:
    return {"model_id": run_id, "seq_id": seq_id, "adam_params": {"learning_rate": 1e-4}}


async def test_a_journal_that_takes_nothing_is_told_so_that_clients_come_back(
    context: Context, ann: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = await ann.run()

    async def stalled(*_: object) -> str:
        raise Stalled("the disk is full")

    monkeypatch.setattr(context.engine.training, "optim_step", stalled)

    answer = await ann.http.post("optim_step", json=step(run_id, 7))

    assert refusal(answer, 503) == "the disk is full"
    assert answer.headers["retry-after"] == "5"
