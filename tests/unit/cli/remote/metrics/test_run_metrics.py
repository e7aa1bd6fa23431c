from __future__ import annotations

import asyncio
import csv
import io
import json
from typing import Any

import pytest

from chockstone.cli.remote.client import NotThere, connect
from chockstone.cli.remote.metrics.run_metrics import follow_metrics
from support.cli.loopback import Loopback


def trained(asked: Loopback, *numbers: int, reward: float | None = None) -> str:
    """A run with a pass and a step for each number."""

    async def train() -> str:
        run_id = await asked.user().run()
        live = await asked.served.engine.wake(run_id)
        assert live is not None
        for number in numbers:
            await asked.served.engine.training.forward_backward(live, None, str(number).encode())
            await asked.served.engine.training.optim_step(live, None, {})
        await live.lane.drained()
        return run_id

    run_id = asked.wait(train())
    if reward is not None:
        asked.wait(report(asked, run_id, len(numbers), reward))
    return run_id


async def report(asked: Loopback, run_id: str, step: int, reward: float) -> None:
    body = {"points": [{"step": step, "values": {"reward": reward}}]}
    answer = await asked.served.http.post(f"training_runs/{run_id}/metrics", json=body)
    assert answer.status_code == 200, answer.text


def test_the_last_steps_are_a_table(asked: Loopback) -> None:
    run_id = trained(asked, 8, 16, 4000, reward=0.5)

    lines = asked.run("runs", "metrics", run_id[:12], "--last", "2").stdout.splitlines()

    assert lines[0].split() == ["STEP", "LOSS", "LR", "GRAD", "NORM", "TOKENS", "SECONDS", "REWARD"]
    assert lines[1].split() == ["2", "4", "16", "0"]
    assert lines[2].split() == ["3", "1000", "4,000", "0", "0.5"]
    assert lines[3] == "the last 2 of 3 rows; --csv prints all points"
    assert max(map(len, lines)) <= 80


def test_all_points_as_json_and_csv(asked: Loopback) -> None:
    run_id = trained(asked, 8, 16, reward=0.5)

    document = asked.json("runs", "metrics", run_id)
    rows = list(csv.DictReader(io.StringIO(asked.run("runs", "metrics", run_id, "--csv").stdout)))
    chosen = asked.json("runs", "metrics", run_id, "--names", "reward")

    assert [each["position"] for each in document["points"]] == [1, 2, 3, 4, 5]
    assert [row["loss"] for row in rows] == ["2.0", "", "4.0", "", ""]
    assert [each["values"] for each in chosen["points"]] == [{"reward": 0.5}]


def test_a_run_without_metrics_says_so(asked: Loopback) -> None:
    run_id = trained(asked)

    assert asked.run("runs", "metrics", run_id).stdout == f"run {run_id} has no metrics yet\n"
    assert "has no metrics named reward yet" in asked.run("runs", "metrics", run_id, "--names", "reward").stdout


def test_mistakes_are_explained(asked: Loopback) -> None:
    run_id = trained(asked)

    assert asked.run("runs", "metrics", run_id, "--csv", "--json").exit_code == 2
    assert asked.run("runs", "metrics", run_id, "--csv", "--follow").exit_code == 2
    assert "is not the name of a series" in asked.run("runs", "metrics", run_id, "--names", "a b&limit=1").stderr
    assert asked.run("runs", "metrics", "nope").exit_code == 1


class _Enough(Exception):
    pass


class Screen(io.StringIO):
    """Standard output, until it has so many lines; ``then`` is called before the first wait."""

    def __init__(self, lines: int) -> None:
        super().__init__()
        self._most = lines

    def isatty(self) -> bool:
        return False

    def flush(self) -> None:
        if self.getvalue().count("\n") >= self._most:
            raise _Enough


@pytest.mark.parametrize("as_json", [False, True])
def test_new_steps_are_followed(asked: Loopback, monkeypatch: pytest.MonkeyPatch, as_json: bool) -> None:
    run_id = trained(asked, 8)
    screen = Screen(5 if not as_json else 4)
    stream = connect(asked.url, "tml-local")

    async def train_more() -> None:
        live = await asked.served.engine.wake(run_id)
        assert live is not None
        await asked.served.engine.training.forward_backward(live, None, b"16")
        await asked.served.engine.training.optim_step(live, None, {})
        await report(asked, run_id, 2, 0.5)

    asked.wait(train_more_later(asked, train_more))
    monkeypatch.setattr("sys.stdout", screen)
    with pytest.raises(_Enough):
        follow_metrics(stream, run_id, names=None, last=20, as_json=as_json)

    lines = screen.getvalue().splitlines()
    if as_json:
        assert [json.loads(line)["position"] for line in lines[:4]] == [1, 2, 3, 4]
    else:
        assert lines[0].split()[:2] == ["STEP", "LOSS"]
        assert lines[1].split() == ["1", "2", "8", "0"]
        assert lines[2].split() == ["2", "4", "16", "0"]
        assert lines[3].split()[-1] == "REWARD", "the headers of the new series"
        assert lines[4].split() == ["2", "0.5"]


async def train_more_later(asked: Loopback, train: Any) -> None:
    """Once somebody subscribes."""

    async def wait_and_train() -> None:
        while not asked.served.engine.history._subscriptions._by_run:
            await asyncio.sleep(0.001)
        await train()

    asked.served.app.state.training = asyncio.create_task(wait_and_train())


def test_a_run_that_is_not_there_cannot_be_followed(asked: Loopback) -> None:
    with pytest.raises(NotThere):
        follow_metrics(connect(asked.url, "tml-local"), "nope:train:0", names=None, last=1, as_json=False)
