"""Context: what the harness gives to the set-up of a benchmark, and to each of its measures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness.free_memory import AsItIs, FreeMemory, Temperature
from benchmarks.harness.rounds import Rows, Turn, run_rounds


@dataclass(frozen=True, slots=True)
class Context:
    chosen: frozenset[str]  # names of the measures of this run
    quick: bool
    threads: int  # for arithmetic, in servers and baselines alike
    temperature: Temperature  # of the free memory that contestants find
    directory: Path  # on a disk; of this measure alone, and removed after it
    say: Callable[[str], None]  # shows what is going on
    describe: Callable[[str], None]  # what this measure was made on: the second half of its title

    def run_rounds(
        self,
        contestants: Mapping[str, Turn],
        *,
        repeats: int,
        memory: FreeMemory | None = None,
        check: Callable[[str], str | None] = lambda _name: None,
    ) -> Rows:
        """Rounds in which all contestants take turns; see ``rounds.py``. By default, free memory is left as it is."""
        return run_rounds(contestants, repeats=repeats, memory=memory or AsItIs(), say=self.say, check=check)
