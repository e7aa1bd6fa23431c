from __future__ import annotations

from chockstone.cli.training.report import RecordedRun, sparkline


def test_a_sparkline_has_a_bar_for_each_share() -> None:
    assert sparkline([0.0, 0.5, 1.0]) == "▁▅█"
    assert sparkline([0.0, 0.0]) == "▁▁"
    assert sparkline([0.5]) == "█"
    assert len(sparkline([float(number) for number in range(1000)])) == 40


def test_a_recorded_run_adds_up_what_some_steps_lack() -> None:
    story = RecordedRun([{"time/save": 1.0}, {"other": 5.0}, {"time/save": 2.0}], {}, {})

    assert (story.total("time/save"), story.most("time/save")) == (3.0, 2.0)
