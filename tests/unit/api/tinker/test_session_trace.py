from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from chockstone.api.context import Context
from chockstone.api.tinker.session_trace import MOST_OPERATIONS, build_trace, lay_out, timings_in
from chockstone.engine.history.points import HistoryPoint
from chockstone.telemetry.timings import RecentTimings, WorkTiming
from support.api.users import MODEL, User
from support.perfetto import Slice, read_trace


def timing(queued: float, begun: float, ended: float, name: str = "optim_step", **details: Any) -> WorkTiming:
    return WorkTiming(name, queued, begun, ended, sequence=int(queued) + 1, details=details)


async def trace_of(context: Context, session_id: str) -> Any:
    return read_trace(await build_trace(context, await context.catalog.sessions.get(session_id)))


def test_operations_that_were_queued_together_are_on_rows_where_none_overlap() -> None:
    together = [timing(0, 0, 1), timing(0.1, 1, 2), timing(0.2, 2, 3), timing(5, 5, 6)]

    rows = lay_out(together)

    assert [[each.ended_at for each in row] for row in rows] == [[1, 6], [2], [3]]


def test_a_long_queue_has_few_rows_and_says_how_long_each_waited() -> None:
    queue = [timing(0, number, number + 1) for number in range(1000)]

    rows = lay_out(queue)

    assert len(rows) == 16
    assert sum(map(len, rows)) == 1000
    for row in rows:
        assert all(one.ended_at <= other.queued_at for one, other in itertools.pairwise(row))
    assert max(each.details.get("waited_seconds", 0) for row in rows for each in row) == 999


def test_a_clock_that_goes_back_does_not_break_a_row() -> None:
    [row] = lay_out([timing(10, 9, 8), timing(20, 19, 25)])

    assert [(each.queued_at <= each.begun_at < each.ended_at) for each in row] == [True, True]


async def test_each_operation_is_shown_with_its_wait_and_its_execution(context: Context, ann: User) -> None:
    session_id = await ann.session(display_name="sweep")
    run_id = await ann.run(session_id)
    await ann.save(run_id, "first")
    for number in (1, 2):
        body = {"model_id": run_id, "seq_id": 100 + number, "adam_params": {"learning_rate": 0.1}}
        await ann.result("optim_step", body)

    trace = await trace_of(context, session_id)

    by_track = trace.names_by_track()
    assert by_track["operations"][:1] == ["create_model"]
    assert [name for name in by_track["operations"] if name == "optim_step"] == ["optim_step"] * 2
    assert by_track["saves"][0] == "save_weights"
    [saved] = [each for each in trace.slices if each.name == "save_weights"]
    assert saved.details["path"].endswith("/weights/first")
    assert trace.parent_of("operations") == trace.parent_of("saves") == f"run {run_id}"
    assert "saved weights/first" in trace.instants_of(f"run {run_id}")


async def test_samples_and_recoveries_are_instants(context: Context, ann: User) -> None:
    session_id = await ann.session()
    run_id = await ann.run(session_id)
    sampler_id = f"{session_id}:sample:0"
    await ann.http.post(
        "create_sampling_session",
        json={"session_id": session_id, "sampling_session_seq_id": 0, "base_model": MODEL},
    )
    context.engine.timings.add(sampler_id, timing(1e9, 1e9 + 1, 1e9 + 3, "sample", tokens=7))
    await context.catalog.recoveries.add(
        run_id=run_id, owner="ann", at=datetime.now(UTC), reason="the worker died", replayed=3
    )

    trace = await trace_of(context, session_id)

    assert "recovered" in trace.instants_of(f"run {run_id}")
    [sample] = [each for each in trace.instants if each.name == "sample"]
    assert (sample.details["tokens"], sample.details["waited_seconds"], sample.details["seconds"]) == (7, 1.0, 2.0)


async def test_a_trace_has_the_newest_operations_and_says_how_many_it_omits(
    context: Context, ann: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    session_id = await ann.session()
    run_id = await ann.run(session_id)
    many = RecentTimings(per_key=2 * MOST_OPERATIONS)
    now = datetime.now(UTC).timestamp()
    for number in range(MOST_OPERATIONS + 10):
        many.add(run_id, timing(now + number, now + number, now + number + 0.5))
    monkeypatch.setattr(context.engine, "timings", many)

    trace = await trace_of(context, session_id)

    whole: Slice = next(each for each in trace.slices if each.name == f"session {session_id}")
    assert whole.details["omitted_operations"] == 10
    assert sum(each.name == "optim_step" for each in trace.slices) == MOST_OPERATIONS


async def test_names_and_values_of_clients_are_only_text(context: Context, ann: User) -> None:
    session_id = await ann.session(display_name="\x1b[31m<script>é", user_metadata={"a": "b"})
    run_id = await ann.run(session_id)
    await ann.save(run_id, "x", user_metadata={"<b>": "\u2028" * 10})

    trace = await trace_of(context, session_id)

    assert "\x1b[31m<script>é" in trace.tracks.values()
    assert timedelta(0) <= max(each.length for each in trace.slices)


def point(sequence: int | None, at: float, *, count: int = 1, **values: float) -> HistoryPoint:
    return HistoryPoint(1, sequence, at, 7, "server" if sequence else "client", values, count)


def test_after_a_restart_executions_come_from_the_history() -> None:
    points = [
        point(1, 100.0, seconds=2.0, loss=0.5),
        point(2, 101.0, seconds=1.0, learning_rate=0.1),
        point(3, 102.0, seconds=1.0),  # of this server, which knows more
        point(4, 103.0, seconds=1.0, count=2),
        point(None, 104.0, reward=1.0),
        point(5, 105.0),
    ]

    found = timings_in(points, but=[timing(2, 2, 3)])

    assert [(each.name, each.begun_at, each.ended_at) for each in found] == [
        ("forward_backward", 98.0, 100.0),
        ("optim_step", 100.0, 101.0),
    ]
    assert found[0].details == {"step": 7, "seconds": 2.0, "loss": 0.5, "source": "history"}
