from __future__ import annotations

import httpx
from prometheus_client.parser import text_string_to_metric_families

from chockstone.api.context import Context
from support.served import Served


def values(text: str) -> dict[str, float]:
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {sample.name + str(sample.labels.get("le", "")): sample.value for sample in samples}


async def test_metrics_need_no_credential_and_tell_how_late_the_loop_was(served: Served, context: Context) -> None:
    for late_seconds in (0.002, 0.3, 0.2):
        context.loop_health.beat(late_seconds)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(served.app), base_url="http://localhost") as stranger:
        answer = await stranger.get("/metrics")

    told = values(answer.text)
    assert answer.headers["content-type"].startswith("text/plain")
    assert told["chockstone_loop_stall_seconds_count"] == 3
    assert told["chockstone_loop_stall_seconds_bucket0.1"] == 1
    assert told["chockstone_loop_stall_max_seconds"] == 0.3


async def test_metrics_tell_nothing_of_users(context: Context) -> None:
    named = {name.partition("_bucket")[0] for name in values(context.loop_health.render().decode())}

    assert all(name.startswith("chockstone_loop_") for name in named)
