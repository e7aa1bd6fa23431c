from __future__ import annotations

from typing import Any

import pytest

from chockstone.api.context import Context
from chockstone.catalog import SamplerRow
from support.api.users import User, refusal, url_of


async def test_a_sampler_of_weights_that_go_at_the_same_moment_is_not_made(
    context: Context, ann: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = await ann.save(await ann.run(), "a", kind="sampler_weights")
    body = {"session_id": await ann.session(), "sampling_session_seq_id": 0, "model_path": path}
    original = context.catalog.samplers.create

    async def too_late(*facts: Any, **more: Any) -> SamplerRow:
        assert (await ann.http.delete(url_of(path))).status_code == 204
        return await original(*facts, **more)

    monkeypatch.setattr(context.catalog.samplers, "create", too_late)

    assert "a moment ago" in refusal(await ann.http.post("create_sampling_session", json=body), 404)
