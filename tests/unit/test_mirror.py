"""``tests/unit`` mirrors ``src/chockstone``: a source's tests are found by its name.

``engine/runs/lanes.py`` is tested by ``tests/unit/engine/runs/test_lanes.py``, or by several files
``test_lanes_<aspect>.py`` beside it. A claim about several sources is tested in a folder ``behaviour``.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path
from typing import Final

from support.source_trees import SOURCE, source_paths, source_trees

UNIT = Path(__file__).parent
SMALL_LINES: Final = 40  # a source this short may be tested through the file that uses it


def sources() -> list[Path]:
    return [path for path in source_paths() if path.name != "__init__.py"]


def unit_tests() -> list[Path]:
    """Test files that must name a source: all but those in ``behaviour`` and directly in ``tests/unit``."""
    paths = [path.relative_to(UNIT) for path in sorted(UNIT.rglob("test_*.py"))]
    return [path for path in paths if len(path.parts) > 1 and "behaviour" not in path.parts]


def is_named_after(test: Path, source: Path) -> bool:
    subject = test.stem.removeprefix("test_")
    return subject == source.stem or subject.startswith(f"{source.stem}_")


def has_code(source: Path) -> bool:
    definitions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    is_small = len(source.read_text().splitlines()) <= SMALL_LINES
    return not is_small and any(isinstance(node, definitions) for node in source_trees()[source].body)


def test_a_unit_test_is_named_after_a_source_in_the_mirrored_folder() -> None:
    nameless = [
        str(test)
        for test in unit_tests()
        if not any(is_named_after(test, source) for source in (SOURCE / test.parent).glob("*.py"))
    ]

    assert not nameless, "these name no source in their folder; a claim about several sources belongs in behaviour/"


def test_every_source_has_a_namesake_test() -> None:
    beside_the_rooms = [path.relative_to(UNIT) for path in UNIT.glob("test_*.py")]
    tests: dict[Path, list[Path]] = defaultdict(list)
    for test in [*unit_tests(), *beside_the_rooms]:
        tests[test.parent].append(test)

    missing = {
        str(source.relative_to(SOURCE))
        for source in sources()
        if has_code(source)
        and not any(is_named_after(test, source) for test in tests[source.parent.relative_to(SOURCE)])
    }

    assert not missing, "add a test named after each of these sources"
