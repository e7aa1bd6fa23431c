from __future__ import annotations

import ast
from pathlib import Path

import pytest

from chockstone.engine.runs import run as run_module
from chockstone.engine.runs.run import Held, LiveRuns, Lost, Ready, Recovering, ReplayBacklog, Run, RunFacts, Waiting
from chockstone.engine.runs.run_journal import RunJournal
from chockstone.wire.failures import ServerFailure
from support.engine.making import blank_history


def make_live(run_id: str = "s:train:0") -> Run:
    facts = RunFacts(run_id, "s", 0, "local", "tiny", {"rank": 8}, {"type": "adamw"})
    return Run(facts, RunJournal(None, None), blank_history(run_id))


def test_a_run_is_found_until_it_is_removed() -> None:
    runs, live = LiveRuns(), make_live()

    runs.add(live)
    assert runs.get(live.run_id) is live
    assert (list(runs), len(runs)) == ([live], 1)

    runs.remove(live)
    assert runs.get(live.run_id) is None
    assert len(runs) == 0


def test_runs_may_come_and_go_while_they_are_gone_through() -> None:
    runs = LiveRuns()
    for number in range(3):
        runs.add(make_live(f"s:train:{number}"))

    for live in runs:
        runs.remove(live)

    assert len(runs) == 0


def test_removing_a_run_leaves_its_successor_of_the_same_id() -> None:
    runs = LiveRuns()
    first, second = make_live(), make_live()
    runs.add(first)
    runs.remove(first)
    runs.add(second)

    runs.remove(first)

    assert runs.get(second.run_id) is second


def test_what_a_run_is_made_with_is_the_same_when_it_is_read_again() -> None:
    facts = RunFacts("s:train:3", "s", 3, "ann", "tiny", {"rank": 8}, {"type": "adamw"}, {"team": "a"}, "p")

    assert RunFacts.from_json(facts.to_json()) == facts


def test_a_run_waits_and_recovers_and_is_ready_again() -> None:
    run = make_live()

    run.wait("for the catalog")
    assert (run.state, run.waits_for) == (Waiting("for the catalog"), "for the catalog")
    run.begin_recovery("2 of 3")
    assert (run.state, run.waits_for) == (Recovering("2 of 3"), "2 of 3")
    run.resume()
    assert (run.state, run.waits_for, run.is_stuck) == (Ready(), None, False)


def test_a_held_run_stays_held_until_it_is_lost() -> None:
    run = make_live()
    run.hold("no such model")

    run.wait("for the catalog")
    run.resume()
    assert (run.state, run.waits_for, run.is_stuck) == (Held("no such model"), "no such model", True)

    run.lose("its journal is damaged")
    assert run.state == Lost("its journal is damaged")


def test_a_lost_run_stays_lost_for_the_first_reason() -> None:
    run = make_live()
    run.lose("its journal is damaged")

    run.lose("another reason")
    run.hold("no such model")
    run.resume()

    assert (run.state, run.waits_for, run.is_stuck) == (Lost("its journal is damaged"), None, True)
    with pytest.raises(ServerFailure, match="its journal is damaged"):
        run.refuse_if_lost()


def test_an_archive_that_fails_gives_its_backlog_back() -> None:
    run = make_live()
    run.add_to_backlog(steps=1, seconds=0.5)

    run.begin_archive()
    run.add_to_backlog(seconds=0.25)
    assert run.backlog == ReplayBacklog(0, 0.25, 1)
    run.note_archive_failed()
    run.end_archive()

    assert run.backlog == ReplayBacklog(1, 0.75, 2)


def test_a_replay_starts_after_the_older_of_two_archives() -> None:
    run = make_live()

    run.note_archive("a", seal="1", through=4)
    assert run.replay_starts_after == 0
    run.note_archive("b", seal="2", through=9)
    assert run.replay_starts_after == 4
    run.note_archive("c", seal="3", through=12)
    run.note_archive_deleted("a")

    assert (run.archives, run.replay_starts_after) == ([9, 12], 9)
    assert run.head()["seals"] == {"b": "2", "c": "3"}


def test_only_a_run_writes_its_fields() -> None:
    source = Path(run_module.__file__).parents[1]

    written = [
        f"{path.name}: {ast.unparse(node)}"
        for path in sorted(source.rglob("*.py"))
        if "run." in (text := path.read_text())
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del)
        if ast.unparse(node).startswith("run.")
    ]

    assert written == []
