from __future__ import annotations

from chockstone.telemetry.declarations import DECLARATIONS, QUEUED_SAMPLES
from chockstone.telemetry.instruments import Instruments
from support.exposition import series_of


def test_counters_start_at_zero_so_that_the_first_event_is_seen() -> None:
    found = series_of(Instruments().render())

    assert found['chockstone_save_failures_total{kind="weights", reason="no_room"}'] == 0
    assert found['chockstone_operations_total{operation="optim_step", outcome="server_error"}'] == 0
    assert found["chockstone_recovery_mismatches_total"] == 0


def test_a_value_from_outside_the_list_is_other() -> None:
    instruments = Instruments()

    instruments.operation_began("made up", waited_seconds=0.1)
    instruments.operation_ended("made up", "ok", seconds=0.2)
    instruments.http_begins()
    instruments.http_ended(method="MADEUP", route="/a", status=200, seconds=0.1)

    text = instruments.render().decode()
    found = series_of(text)
    assert "made up" not in text and "MADEUP" not in text
    assert found['chockstone_operations_total{operation="other", outcome="ok"}'] == 1
    assert found['chockstone_operation_wait_seconds_count{operation="other"}'] == 1
    assert found['chockstone_http_requests_total{method="other", route="/a", status="200"}'] == 1


def test_a_recovery_counts_its_parts() -> None:
    instruments = Instruments()

    instruments.recovered("worker_died", seconds=2.0, replayed=5, mismatched=1, lost=3)

    found = series_of(instruments.render())
    assert found['chockstone_recoveries_total{reason="worker_died"}'] == 1
    assert found["chockstone_recovery_seconds_sum"] == 2.0
    assert found["chockstone_recovery_replayed_operations_total"] == 5
    assert found["chockstone_recovery_mismatches_total"] == 1
    assert found["chockstone_recovery_lost_operations_total"] == 3


def test_an_api_replica_exports_only_what_happens_in_it() -> None:
    text = Instruments(has_engine=False).render().decode()

    exported = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
    assert exported == {each.name for each in DECLARATIONS.values() if not each.is_of_engine}


def test_facts_come_behind_the_counters_and_there_are_no_creation_times() -> None:
    text = Instruments().render([QUEUED_SAMPLES.family(((), 4.0))]).decode()

    assert text.endswith("chockstone_queued_samples 4.0\n")
    assert "_created" not in text


def test_two_processes_of_instruments_do_not_share_numbers() -> None:
    first, second = Instruments(), Instruments()

    first.trained(7)

    assert series_of(first.render())["chockstone_trained_tokens_total"] == 7
    assert series_of(second.render())["chockstone_trained_tokens_total"] == 0
