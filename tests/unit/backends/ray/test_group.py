from __future__ import annotations

from pathlib import Path

import pytest

from chockstone.backends.ray.plan import RayPlan
from chockstone.backends.supervision.process import WorkerConfig

pytest.importorskip("ray.util.placement_group", reason="needs Ray: pip install 'chockstone[ray]'")

from chockstone.backends.ray.group import RayRefused, RayWorker, RayWorkerGroup  # needs Ray


@pytest.mark.parametrize(("host", "rendezvous"), [("10.0.0.7", "tcp://10.0.0.7:81"), ("fd00::7", "tcp://[fd00::7]:81")])
def test_ranks_meet_at_the_address_of_the_first(host: str, rendezvous: str) -> None:
    worker = RayWorker(0, "node", host, 81, 4711)

    assert worker.rendezvous == rendezvous
    assert str(worker) == f"worker 0 (process 4711 on {host})"


def test_an_address_where_nothing_listens_is_refused(tmp_path: Path) -> None:
    group = RayWorkerGroup(RayPlan(address="127.0.0.1:1"), WorkerConfig(models={}, store=str(tmp_path)))

    with pytest.raises(RayRefused, match=r"at '127.0.0.1:1' cannot be joined: .*Connection refused"):
        group.join()
