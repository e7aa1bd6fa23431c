from __future__ import annotations

import asyncio
import logging

import pytest

from chockstone.api.loop_health import LoopHealth
from chockstone.checkpoints import Stall
from chockstone.telemetry.instruments import Instruments
from support.exposition import series_of


async def test_the_watchdog_of_a_server_counts_its_beats() -> None:
    instruments = Instruments()
    health = LoopHealth(instruments)
    watchdog = health.watchdog()
    watchdog.start(asyncio.get_running_loop())

    while series_of(instruments.render())["chockstone_loop_stall_seconds_count"] < 2:
        await asyncio.sleep(0.01)
    watchdog.stop()


def test_one_warning_in_a_while_names_the_culprit_and_counts_the_rest(caplog: pytest.LogCaptureFixture) -> None:
    now = 100.0
    instruments = Instruments()
    health = LoopHealth(instruments, monotonic=lambda: now)
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
    assert series_of(instruments.render())["chockstone_loop_held_total"] == 3
