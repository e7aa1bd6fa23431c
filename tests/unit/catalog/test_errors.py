from __future__ import annotations

import re

from chockstone.catalog import errors


def test_the_drawn_tree_is_the_tree_of_classes() -> None:
    """Each name in the module's docstring is a class, below the one that it is drawn below."""
    drawn = [(line.index(name), name) for line in (errors.__doc__ or "").splitlines() for name in names_in(line)]
    parents: list[tuple[int, str]] = []
    for depth, name in drawn:
        while parents and parents[-1][0] >= depth:
            parents.pop()
        above = Exception if not parents else getattr(errors, parents[-1][1])
        assert getattr(errors, name).__bases__ == (above,)
        parents.append((depth, name))

    assert len(drawn) == len([each for each in vars(errors).values() if isinstance(each, type)])


def names_in(line: str) -> list[str]:
    return re.findall(r"^[│├└─ ]*([A-Z][A-Za-z]+)", line)[:1] if "What can go wrong" not in line else []


def test_facts_are_attributes() -> None:
    assert errors.RowMissing("gone", code="expired").code == "expired"
    assert errors.CatalogAway("cut", may_be_done=True).may_be_done
