"""Run what a change breaks first: the rules of the house, and the unit tests beside the changed files.

    python .ci/quick.py [BASE]

A change is what differs from the commit BASE (default: the newest commit that the upstream branch has, else HEAD),
with untracked files. ``tests/unit`` mirrors ``src``, so src/chockstone/engine/runs/lanes.py selects
tests/unit/engine/runs/test_lanes*.py. A changed unit test selects itself; a changed ``conftest.py`` or ``__init__.py``
selects its folder. Exits with pytest's code, or with 1 when the selection takes longer than three minutes.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

RULES: Final = [Path("tests/unit", name) for name in ("test_house.py", "test_mirror.py", "test_rooms.py")]
SOURCE: Final = Path("src/chockstone")
UNIT: Final = Path("tests/unit")
SECONDS: Final = 180


def select(changed: Iterable[Path], root: Path) -> list[Path]:
    """The test files that go with the changed files, relative to ``root``; the rules of the house come first."""
    found: set[Path] = set()
    for path in changed:
        if path.is_relative_to(SOURCE):
            folder = UNIT / path.relative_to(SOURCE).parent
            name = "test_*.py" if path.name == "__init__.py" else f"test_{path.stem}*.py"
        elif path.is_relative_to(UNIT):
            folder = path.parent
            name = "test_*.py" if path.name in ("__init__.py", "conftest.py") else path.name
        else:
            continue
        found |= {each.relative_to(root) for each in (root / folder).glob(name) if each.name.startswith("test_")}
    return RULES + sorted(found - set(RULES))


def list_changed(base: str | None) -> list[Path]:
    if base is None:
        upstream = _git("merge-base", "HEAD", "@{upstream}")
        base = upstream[0] if upstream else "HEAD"
    names = _git("diff", "--name-only", base) + _git("ls-files", "--others", "--exclude-standard")
    return [Path(name) for name in names if name.endswith(".py")]


def _git(*words: str) -> list[str]:
    return subprocess.run(["git", *words], capture_output=True, text=True, check=False).stdout.split()


def main(arguments: list[str]) -> int:
    tests = select(list_changed(arguments[0] if arguments else None), Path.cwd())
    print(f"quick: {len(tests)} test files", flush=True)
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "worksteal", *map(str, tests)]
    try:
        return subprocess.run(command, check=False, timeout=SECONDS).returncode
    except subprocess.TimeoutExpired:
        print(f"quick: stopped after {SECONDS} s; the change is too large for this target: run `make test`")
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
