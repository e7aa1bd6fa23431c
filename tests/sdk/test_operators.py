"""What operators are told while a real script trains, after the worker is killed, and after it is back."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import httpx
import tinker

from sdk.making import batch, create, train
from support.live import LiveServer

WAIT_SECONDS = 120.0


def until(http: httpx.Client, path: str, is_right: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """The first answer that is right."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not is_right(answer := http.get(path).json()):
        assert time.monotonic() < deadline, answer
        time.sleep(0.02)
    return answer


def test_the_server_and_its_runs_tell_the_truth_through_a_crash(
    start_server: Callable[..., LiveServer], connect: Callable[..., tinker.ServiceClient]
) -> None:
    live = start_server(is_executed=True)  # its worker is away for seconds, in which it is looked at
    run = create(connect(live))
    train(run, 3)
    run.save_state("a").result()

    with live.http() as http:
        assert http.get("readyz").json() == {"status": "ready"}
        server = until(http, "server", lambda answer: "memory_bytes" in answer["worker"])
        [row] = http.get("runs").json()["runs"]

        assert (server["worker"]["state"], server["worker"]["restarts"]) == ("ready", 0)
        assert server["worker"]["memory_bytes"] > 10 << 20 and server["worker"]["device"] == "cpu"
        assert all(model["is_loaded"] for model in server["models"])
        assert server["runs"] == {"ready": 1} and server["problems"] == []
        assert server["tokens_per_second"]["trained"] > 0
        assert (row["state"], row["step"], row["checkpoints"], row["queue_depth"]) == ("ready", 3, 1, 0)
        assert row["tokens"] > 0 and row["loss"] > 0 and row["journal_bytes"] > 0

        [worker] = live.workers()
        os.kill(worker, signal.SIGKILL)
        away = until(http, "server", lambda answer: answer["worker"]["state"] != "ready")
        probe = http.get("readyz")
        health = http.get("healthz")
        [waiting] = http.get("runs").json()["runs"]

        assert away["worker"]["state"] == "restarting" and "SIGKILL" in away["worker"].get("last_death", "SIGKILL")
        assert not any(model["is_loaded"] for model in away["models"])
        assert (health.status_code, health.json()) == (200, {"status": "ok"})
        assert probe.status_code == 503 and [each["check"] for each in probe.json()["reasons"]] == ["worker"]
        assert waiting["state"] in ("waiting", "recovering") and waiting["waits_for"]

        asked = run.forward_backward(batch(9), "cross_entropy")
        queued = until(http, f"runs/{row['run_id']}", lambda answer: bool(answer["operations"]))
        assert queued["operations"][0]["type"] == "forward_backward"
        asked.result()

        back = until(http, "server", lambda answer: answer["runs"] == {"ready": 1})
        recovered = http.get("recoveries").json()["recoveries"]

        assert (back["worker"]["state"], back["worker"]["restarts"], back["worker"]["generation"]) == ("ready", 1, 2)
        assert [each["kind"] for each in back["problems"]] == ["worker_died"]
        assert http.get("readyz").status_code == 200
        assert recovered[0]["run_id"] == row["run_id"] and recovered[0]["mismatched"] == 0
