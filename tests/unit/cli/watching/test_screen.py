from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from chockstone.cli.watching.overview import Outage, RunLine, ServerOverview
from chockstone.cli.watching.screen import draw
from support.catalog.making import NOW

GIB = 1 << 30


def server(**changes: Any) -> dict[str, Any]:
    return {
        "version": "1.2.3",
        "uptime_seconds": 7300.0,
        "is_stopping": False,
        "worker": {"state": "ready", "restarts": 1, "device": "cpu", "dtype": "float32", "memory_bytes": GIB},
        "disk": {
            "free_bytes": 50 * GIB,
            "total_bytes": 100 * GIB,
            "used_bytes": 50 * GIB,
            "reserve_bytes": GIB,
            "full_in_days": 12.5,
        },
        "runs": {"ready": 2, "parked": 5, "lost": 0},
        "queue": {"operations": 3, "samples": 1, "oldest_wait_seconds": 2.0},
        "tokens_per_second": {"trained": 12345.6, "sampled": 0.0},
        "problems": [],
        **changes,
    }


def run(number: int = 0, **changes: Any) -> RunLine:
    line = RunLine(
        run_id=f"{0x6F1C2D3E + number:08x}-0000-4000-8000-000000000000:train:0",
        state="ready",
        waits_for=None,
        owner="ann",
        base_model="Qwen/Qwen3-8B",
        step=1234,
        loss=0.51234,
        curve=(4.0, 3.0, 2.0, 1.0),
        tokens_per_second=890.0,
        queue_depth=2,
        oldest_wait_seconds=1.0,
        used_at=NOW,
    )
    return replace(line, **changes)


def overview(*runs: RunLine, recoveries: tuple[dict[str, Any], ...] = (), **changes: Any) -> ServerOverview:
    return ServerOverview("http://127.0.0.1:8000", NOW, server(**changes), runs, recoveries)


def text(shown: ServerOverview, width: int = 80, **others: Any) -> str:
    return "\n".join(line.plain for line in draw(shown, width=width, **others))


def test_it_says_what_the_server_does() -> None:
    shown = text(overview(run()))

    assert "chockstone 1.2.3 at http://127.0.0.1:8000  up 2 h" in shown
    assert "worker   ready, cpu, float32, 1.1 GB, 1 restart" in shown
    assert "tokens/s 12,346 trained, 0 sampled" in shown
    assert "queue    3 operations, 1 sample, oldest 2 s" in shown
    assert "disk     [#####.....] 53.7 GB free of 107.4 GB, 1.1 GB reserved, full in 12 days" in shown
    assert "runs     2 ready, 5 parked" in shown
    assert "6f1c2d3e  Qwen3-8B  ready  1,234  0.5123       890      2  █▆▃▁" in shown


@pytest.mark.parametrize("width", [40, 60, 80, 120])
@pytest.mark.parametrize("height", [8, 24, 60])
def test_it_fits_any_terminal(width: int, height: int) -> None:
    problem = {"what": "w" * 200, "to_do": "free some space " * 20}
    shown = overview(*(run(n, waits_for="the worker " * 20) for n in range(50)), problems=[problem, problem])

    lines = draw(shown, width=width, height=height)

    assert len(lines) <= height
    assert all(line.cell_len <= width for line in lines)
    assert "q quits" in lines[-1].plain
    assert any("6f1c" in line.plain for line in lines)


def test_problems_say_what_to_do() -> None:
    shown = text(overview(run(), problems=[{"what": "the disk is full", "to_do": "delete checkpoints"}]), height=24)

    assert "! the disk is full\n  delete checkpoints" in shown


def test_a_long_problem_is_wrapped() -> None:
    problem = {"what": "the worker ended with signal 9 " * 5, "to_do": "look in the log"}

    shown = text(overview(run(), problems=[problem]), width=60)

    assert " ".join(shown.split()).count("the worker ended with signal 9") == 5
    assert "\n  look in the log" in shown


def test_recoveries_are_listed_with_their_result() -> None:
    receipt = {
        "run_id": run().run_id,
        "at": (NOW - timedelta(minutes=5)).isoformat(),
        "replayed": 40,
        "seconds": 1.25,
        "matched": 38,
        "mismatched": 2,
        "lost": 0,
    }

    shown = text(overview(run(), recoveries=(receipt,)))

    assert "5 min ago  6f1c2d3e  40 replayed in 1.2 s, 38 identical, 2 different" in shown


def test_a_server_that_is_away_keeps_its_last_overview() -> None:
    away = Outage(NOW, "no server answers at http://127.0.0.1:8000")

    shown = text(overview(run()), outage=away, now=NOW + timedelta(seconds=7), height=24)

    assert "reconnecting for 7 s: no server answers at http://127.0.0.1:8000" in shown
    assert "6f1c2d3e" in shown


def test_a_server_without_runs_says_how_they_appear() -> None:
    assert "no runs: a training script" in text(overview())


def test_texts_of_clients_cannot_move_the_cursor() -> None:
    shown = text(overview(run(base_model="\x1b[2Jevil", waits_for="a\x07b")))

    assert "\x1b" not in shown
    assert "\x07" not in shown
    assert "\\x1b[2Jevil" in shown


def test_what_is_not_known_is_left_out() -> None:
    bare = run(step=None, loss=None, curve=(), tokens_per_second=None, queue_depth=0)

    shown = text(overview(bare, disk=None, worker={"state": "starting", "restarts": 0}))

    assert "disk     not known" in shown
    assert "worker   starting" in shown
    assert "6f1c2d3e  Qwen3-8B  ready" in shown
