from __future__ import annotations

from chockstone.engine.runs.lanes import Lane
from chockstone.engine.runs.live_runs import LiveRuns, Run
from chockstone.engine.runs.run import RunFacts
from chockstone.engine.runs.run_journal import RunJournal


def make_live(run_id: str = "s:train:0") -> Run:
    facts = RunFacts(run_id, "s", 0, "local", "tiny", {"rank": 8}, {"type": "adamw"})
    return Run(facts, Lane(), RunJournal(None, None))


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
