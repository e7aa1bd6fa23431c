"""``tests/unit`` mirrors ``src/chockstone``: a source's tests are found by its name.

``engine/runs/lanes.py`` is tested by ``tests/unit/engine/runs/test_lanes.py``, or by several files
``test_lanes_<aspect>.py`` beside it. A claim about several sources is tested in a folder ``behaviour``.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Final

UNIT = Path(__file__).parent
SOURCE = UNIT.parents[1] / "src" / "chockstone"
SMALL_LINES: Final = 40  # a source this short may be tested through the file that uses it


def sources() -> list[Path]:
    return [path for path in sorted(SOURCE.rglob("*.py")) if path.name != "__init__.py"]


def unit_tests() -> list[Path]:
    """Test files that must name a source: all but those in ``behaviour`` and directly in ``tests/unit``."""
    paths = [path.relative_to(UNIT) for path in sorted(UNIT.rglob("test_*.py"))]
    return [path for path in paths if len(path.parts) > 1 and "behaviour" not in path.parts]


def is_named_after(test: Path, source: Path) -> bool:
    subject = test.stem.removeprefix("test_")
    return subject == source.stem or subject.startswith(f"{source.stem}_")


def has_code(source: Path) -> bool:
    text = source.read_text()
    definitions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return len(text.splitlines()) > SMALL_LINES and any(isinstance(n, definitions) for n in ast.parse(text).body)


def test_a_unit_test_is_named_after_a_source_in_the_mirrored_folder() -> None:
    nameless = [
        str(test)
        for test in unit_tests()
        if not any(is_named_after(test, source) for source in (SOURCE / test.parent).glob("*.py"))
    ]

    assert not nameless, "these name no source in their folder; a claim about several sources belongs in behaviour/"


def test_every_source_has_a_namesake_test() -> None:
    beside_the_rooms = [path.relative_to(UNIT) for path in UNIT.glob("test_*.py")]
    tested = [(UNIT / test, test.parent) for test in [*unit_tests(), *beside_the_rooms]]

    missing = {
        str(source.relative_to(SOURCE))
        for source in sources()
        if has_code(source)
        and not any(
            folder == source.relative_to(SOURCE).parent and is_named_after(test, source) for test, folder in tested
        )
    }

    assert not missing, "add a test named after each of these sources"
