from __future__ import annotations

import pytest

from chockstone.api.context import Context
from support.api.users import User


async def test_what_a_run_is_can_be_asked_while_it_is_parked(
    context: Context, ann: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = await ann.run()
    live = context.engine.runs.get(run_id)
    assert live is not None
    context.engine.runs.remove(live)
    monkeypatch.setattr(context.engine, "wake", lambda _: pytest.fail("it was brought back"))

    told = await ann.http.post("get_info", json={"model_id": run_id})

    assert (told.json()["model_name"], told.json()["lora_rank"]) == ("tiny", 4)
