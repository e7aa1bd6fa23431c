"""Chain facts: what chains of attempts say about the archives of a store, as data.

An archive may be superseded: it was committed after its writer had lost the place, and no resume takes it while there
is another. It may be a reference, which only names another archive. Other archives may depend on it, because they refer
to it or inherit files from it. Archives of no chain have no such facts.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

NUMBER_OF_OTHERS = (0, 0)  # before every generation


@dataclass(frozen=True, slots=True)
class Dependent:
    """An archive that cannot be restored without another one."""

    place: str  # the URI of its attempt
    generation: str
    name: str | None = None  # in the store that was asked about; None: it is elsewhere

    def __str__(self) -> str:
        return f"{self.generation} of {self.place}"


@dataclass(frozen=True, slots=True)
class ChainFacts:
    """By name, as the store lists them."""

    numbers: Mapping[str, tuple[int, int]] = field(default_factory=dict)  # generation and incarnation
    chains: Mapping[str, str] = field(default_factory=dict)  # which chain it is of, where it can be read
    superseded: frozenset[str] = frozenset()
    references: frozenset[str] = frozenset()  # archives that only name another
    dependents: Mapping[str, Sequence[Dependent]] = field(default_factory=dict)

    def number(self, name: str) -> tuple[int, int]:
        """The order of the saves of one attempt, whatever the clock said."""
        return self.numbers.get(name, NUMBER_OF_OTHERS)

    def needed(self, names: Collection[str]) -> dict[str, tuple[Dependent, ...]]:
        """Those of ``names`` that a remaining archive depends on, if all the others of ``names`` are removed."""
        going = set(names)
        needed: dict[str, tuple[Dependent, ...]] = {}
        while found := {name: by for name in going if (by := self._staying(name, going))}:
            needed |= found
            going -= found.keys()
        return needed

    def _staying(self, name: str, going: Collection[str]) -> tuple[Dependent, ...]:
        return tuple(each for each in self.dependents.get(name, ()) if each.name not in going)

    def in_removal_order(self, names: Collection[str]) -> list[str]:
        """Each name after those that depend on it, so that a failed removal breaks no other archive."""
        ordered: dict[str, None] = {}
        left = list(names)
        while left:
            free = [
                name for name in left if not any(each.name in left for each in self.dependents.get(name, ()))
            ] or left  # a circle can only be made by hand
            ordered |= dict.fromkeys(free)
            left = [name for name in left if name not in ordered]
        return list(ordered)


NO_CHAIN = ChainFacts()
