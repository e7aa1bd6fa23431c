from __future__ import annotations

import httpx
from prometheus_client.parser import text_string_to_metric_families

from support.live import LiveServer


def test_a_server_measures_its_event_loop(live: LiveServer) -> None:
    text = httpx.get(f"{live.url}/metrics").text

    families = {family.name: family for family in text_string_to_metric_families(text)}
    beats = [each for each in families["chockstone_loop_stall_seconds"].samples if each.name.endswith("_count")]
    assert beats[0].value > 0
