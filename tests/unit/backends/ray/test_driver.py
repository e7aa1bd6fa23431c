"""The driver as the server starts it, without a cluster."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from chockstone.backends.channel import BlockingChannel
from chockstone.backends.ray.plan import RayPlan, spawn_driver
from chockstone.backends.supervision.process import WorkerConfig


def test_a_cluster_that_cannot_be_joined_is_refused_with_the_reason(tmp_path: Path) -> None:
    spawned = spawn_driver(RayPlan(address="127.0.0.1:1"), WorkerConfig(models={}, store=str(tmp_path)))
    spawned.channel.settimeout(120)
    channel = BlockingChannel(spawned.channel)

    values = channel.receive().values

    assert values["event"] == "refused"
    has_ray = (spec := find_spec("ray")) is not None and spec.origin is not None  # and not the folder of tests
    assert ("'127.0.0.1:1' cannot be joined" if has_ray else "pip install 'chockstone[ray]'") in values["reason"]
    assert spawned.process.wait(60) == 0
    channel.close()


@pytest.mark.skipif(find_spec("ray") is None, reason="needs Ray: pip install 'chockstone[ray]'")
def test_a_driver_ends_when_the_server_closes_the_channel(tmp_path: Path) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as silent:  # no cluster, so that the driver waits for it
        plan = RayPlan(address=f"127.0.0.1:{silent.getsockname()[1]}")
        spawned = spawn_driver(plan, WorkerConfig(models={}, store=str(tmp_path)))
        silent.settimeout(120)
        silent.accept()[0].close()  # it is on its way

        spawned.channel.close()

        assert spawned.process.wait(60) in (0, 1)
