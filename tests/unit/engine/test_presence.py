from __future__ import annotations

from datetime import timedelta

from chockstone.catalog import Catalog
from chockstone.engine.presence import Presence
from support.engine.making import NOW, RUN

LATER = NOW + timedelta(minutes=5)


async def test_what_was_seen_is_in_the_catalog_after_a_flush(catalog: Catalog) -> None:
    await catalog.runs.create("s", 0, owner="local", base_model="tiny", spec={"rank": 8}, now=NOW)
    presence = Presence(catalog, now=lambda: LATER, monotonic=lambda: 0.0)

    presence.saw_session("s")
    presence.saw_run(RUN)
    presence.saw_run("unknown")
    assert presence.last_request(RUN) == LATER
    await presence.flush()

    assert (await catalog.sessions.get("s")).last_heartbeat_at == LATER
    assert (await catalog.runs.get(RUN)).last_request_at == LATER
    assert presence.last_request(RUN) is None


async def test_a_flush_without_news_writes_nothing(catalog: Catalog) -> None:
    await Presence(catalog, now=lambda: LATER, monotonic=lambda: 0.0).flush()

    assert (await catalog.sessions.get("s")).last_heartbeat_at == NOW
