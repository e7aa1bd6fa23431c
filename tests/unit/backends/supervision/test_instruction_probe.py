from __future__ import annotations

from chockstone.backends.supervision.instruction_sets import LADDER, ProbeVerdict, run_probe


def test_the_real_probe_works_here_under_the_lowest_limits() -> None:
    assert run_probe(LADDER[-1]) is ProbeVerdict.WORKS
