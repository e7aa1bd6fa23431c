from __future__ import annotations

from typing import Any

import pytest

from chockstone.api.context import Context
from chockstone.catalog import SamplerRow
from support.api.users import MODEL, User, refusal, url_of
from support.served import Served


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


async def test_what_no_context_can_hold_is_refused_at_once(served: Served, ann: User) -> None:
    """With numbers from which the capture proxy of tinker-cookbook tells its clients to shorten their prompt."""
    prompt = {"chunks": [{"type": "encoded_text", "tokens": [5] * 100}]}
    body = {"base_model": MODEL, "prompt": prompt, "sampling_params": {"max_tokens": 29}}

    told = refusal(await ann.http.post("asample", json=body), 400)
    named = refusal(await ann.http.post("asample", json={**body, "base_model": f"{MODEL}:peft:64"}), 400)

    assert "100 prompt tokens + 29 max_tokens > 128" in told
    assert "100 prompt tokens + 29 max_tokens > 64" in named
    assert (await ann.http.post("asample", json={**body, "sampling_params": {"max_tokens": 28}})).status_code == 200
