from __future__ import annotations

import asyncio
import logging

import pytest
from prometheus_client.parser import text_string_to_metric_families

from chockstone.api.loop_health import LoopHealth
from chockstone.checkpoints import Stall


def values(text: str) -> dict[str, float]:
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {sample.name + str(sample.labels.get("le", "")): sample.value for sample in samples}


async def test_the_watchdog_of_a_server_counts_its_beats() -> None:
    health = LoopHealth()
    watchdog = health.watchdog()
    watchdog.start(asyncio.get_running_loop())

    while values(health.render().decode())["chockstone_loop_stall_seconds_count"] < 2:
        await asyncio.sleep(0.01)
    watchdog.stop()


def test_one_warning_in_a_while_names_the_culprit_and_counts_the_rest(caplog: pytest.LogCaptureFixture) -> None:
    now = 100.0
    health = LoopHealth(monotonic=lambda: now)
    held = Stall(0.5, '  File "slow.py", line 1, in slow\n', 0.4)

    with caplog.at_level(logging.WARNING):
        health.stalled(held)
        health.stalled(held)
        health.stalled(Stall(0.5, "", 0.0))  # by nobody here
        now = 106.0
        health.stalled(held)

    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 2
    assert "in slow" in told[0] and "unsaid_before=0" in told[0]
    assert "unsaid_before=1" in told[1]
    assert values(health.render().decode())["chockstone_loop_held_total"] == 3
