"""Questions to a server on loopback, with real routes."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from chockstone.cli.remote.client import ServerUnreachable, connect
from chockstone.cli.watching.overview import OverviewReader, outage
from support.cli.loopback import Loopback, serve_on_loopback
from support.cli.remote_commands import fill


@pytest.fixture(scope="module")
def loopback(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loopback]:
    with serve_on_loopback(tmp_path_factory.mktemp("watch") / "home") as served:
        yield served


def report(loopback: Loopback, run_id: str, *losses: float, at: float | None = None) -> None:
    points = [{"step": 1, "values": {"loss": loss, "tokens": 600.0}} for loss in losses]
    if at is not None:
        points = [{**point, "at": at} for point in points]
    answer = loopback.wait(loopback.served.http.post(f"training_runs/{run_id}/metrics", json={"points": points}))
    assert answer.status_code == 200, answer.text


def test_an_overview_has_runs_with_their_curves(loopback: Loopback) -> None:
    run_id, _ = fill(loopback, "first")
    report(loopback, run_id, 3.0, 2.0)
    reader = OverviewReader(connect(loopback.url, "tml-local"))

    first = reader.read(now=datetime.now(UTC))
    report(loopback, run_id, 1.0)
    second = reader.read(now=datetime.now(UTC))

    (line,) = [run for run in first.runs if run.run_id == run_id]
    (later,) = [run for run in second.runs if run.run_id == run_id]
    assert (line.state, line.owner, line.curve, line.loss) == ("ready", "local", (3.0, 2.0), 2.0)
    assert later.curve == (3.0, 2.0, 1.0)
    assert later.tokens_per_second == pytest.approx(3 * 600 / 60)
    assert first.server["version"]


def test_tokens_per_second_are_those_of_the_last_minute(loopback: Loopback) -> None:
    run_id, _ = fill(loopback)
    now = datetime.now(UTC)
    report(loopback, run_id, 3.0, at=(now - timedelta(minutes=5)).timestamp())
    reader = OverviewReader(connect(loopback.url, "tml-local"))

    (line,) = [run for run in reader.read(now=now).runs if run.run_id == run_id]

    assert line.tokens_per_second is None


def test_a_document_is_plain_json(loopback: Loopback) -> None:
    from chockstone.cli.output.formatting import plain

    shown = plain(OverviewReader(connect(loopback.url, "tml-local")).read(now=datetime.now(UTC)).document())

    assert set(shown) == {"url", "at", "server", "runs", "recoveries"}
    assert all(isinstance(run["curve"], list) for run in shown["runs"])


def test_an_outage_lasts_from_the_first_failure() -> None:
    began = datetime(2030, 1, 1, tzinfo=UTC)
    first = outage(ServerUnreachable("no server answers: refused"), now=began, before=None)
    second = outage(ServerUnreachable("still not"), now=began + timedelta(seconds=5), before=first)

    assert first.reason == "no server answers: refused"
    assert second.lasts(began + timedelta(seconds=9)) == timedelta(seconds=9)
