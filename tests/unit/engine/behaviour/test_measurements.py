"""What the engine does is counted, once, with the outcome that clients got."""

from __future__ import annotations

import pytest

from chockstone.engine.engine import Engine
from chockstone.wire.failures import BadRequest, ServerFailure
from support.engine.fake_backend import FakeBackend
from support.engine.making import answer, live_run, made_run, result_of, save
from support.exposition import series_of


def series(engine: Engine) -> dict[str, float]:
    return series_of(engine.instruments.render())


async def test_operations_count_with_their_outcome(engine: Engine, backend: FakeBackend) -> None:
    run = await made_run(engine)
    backend.seconds = 2.0
    await result_of(engine, await engine.training.forward_backward(run, 2, b"5"))
    await answer(engine, await engine.training.optim_step(run, 3, {}))
    backend.fail_next("optim_step", BadRequest("no"))
    await answer(engine, await engine.training.optim_step(run, 4, {}))
    backend.fail_next("optim_step", ServerFailure("broken"))
    await answer(engine, await engine.training.optim_step(run, 5, {}))

    found = series(engine)
    assert found['chockstone_operations_total{operation="create_model", outcome="ok"}'] == 1
    assert found['chockstone_operations_total{operation="forward_backward", outcome="ok"}'] == 1
    assert found['chockstone_operations_total{operation="optim_step", outcome="ok"}'] == 1
    assert found['chockstone_operations_total{operation="optim_step", outcome="user_error"}'] == 1
    assert found['chockstone_operations_total{operation="optim_step", outcome="server_error"}'] == 1
    assert found['chockstone_operation_seconds_count{operation="optim_step"}'] == 3
    assert found['chockstone_operation_wait_seconds_count{operation="optim_step"}'] == 3
    assert found['chockstone_compute_seconds_total{operation="forward_backward"}'] == 2.0
    assert found['chockstone_compute_seconds_total{operation="optim_step"}'] == 2.0
    assert found["chockstone_journal_records_total"] >= 10
    assert found["chockstone_journal_written_bytes_total"] > 0


async def test_a_save_counts_its_bytes_and_its_pause(engine: Engine, backend: FakeBackend) -> None:
    run = await made_run(engine)
    backend.seconds = 0.5
    size_bytes = (await answer(engine, await save(engine, run, 2)))["size_bytes"]

    found = series(engine)
    assert found['chockstone_saved_bytes_total{kind="weights"}'] == size_bytes
    assert found['chockstone_save_stall_seconds_sum{kind="weights"}'] == 0.5
    assert found['chockstone_save_seconds_count{kind="weights"}'] == 1


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (BadRequest("full", code="no_room"), "no_room"),
        (BadRequest("wrong"), "refused"),
        (ServerFailure("broken"), "other"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
async def test_a_failed_save_counts_with_its_reason(
    engine: Engine, backend: FakeBackend, error: Exception, reason: str
) -> None:
    run = await made_run(engine)
    backend.fail_next("save", error)
    await answer(engine, await save(engine, run, 2))

    found = series(engine)
    failures = {
        name: value for name, value in found.items() if name.startswith("chockstone_save_failures_total") and value
    }
    assert failures == {f'chockstone_save_failures_total{{kind="weights", reason="{reason}"}}': 1}
    assert found['chockstone_save_seconds_count{kind="weights"}'] == 0


async def test_a_death_of_the_worker_and_the_recovery_count(engine: Engine, backend: FakeBackend) -> None:
    run = await made_run(engine)
    await result_of(engine, await engine.training.forward_backward(run, 2, b"5"))
    await answer(engine, await engine.training.optim_step(run, 3, {}))
    trained = series(engine)["chockstone_trained_tokens_total"]

    backend.die("signal 9")
    engine.worker_lost("signal 9")
    await answer(engine, await engine.training.optim_step(live_run(engine), 4, {}))

    found = series(engine)
    assert found["chockstone_worker_restarts_total"] == 1
    assert found['chockstone_recoveries_total{reason="worker_died"}'] == 1
    assert found["chockstone_recovery_seconds_count"] == 1
    assert found["chockstone_recovery_replayed_operations_total"] == 3
    assert found["chockstone_recovery_mismatches_total"] == 0
    assert found["chockstone_trained_tokens_total"] == trained  # a replay trains nothing new
    assert found['chockstone_operations_total{operation="forward_backward", outcome="ok"}'] == 1
