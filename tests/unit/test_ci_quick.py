"""`make quick` runs the rules of the house and the unit tests beside the changed files."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def quick() -> ModuleType:
    spec = importlib.util.spec_from_file_location("quick", ROOT / ".ci" / "quick.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def chosen(quick: ModuleType, *changed: str) -> list[str]:
    """Without the rules, which are always chosen."""
    found = quick.select([Path(path) for path in changed], ROOT)
    assert found[: len(quick.RULES)] == quick.RULES
    return [str(path) for path in found[len(quick.RULES) :]]


def test_a_source_selects_the_tests_of_its_name(quick: ModuleType) -> None:
    assert chosen(quick, "src/chockstone/engine/runs/lanes.py") == ["tests/unit/engine/runs/test_lanes.py"]


def test_a_test_selects_itself(quick: ModuleType) -> None:
    assert chosen(quick, "tests/unit/wire/test_sizes.py") == ["tests/unit/wire/test_sizes.py"]


def test_an_init_file_and_a_conftest_select_their_folder(quick: ModuleType) -> None:
    for path in ("src/chockstone/wire/__init__.py", "tests/unit/wire/__init__.py", "tests/unit/wire/conftest.py"):
        assert "tests/unit/wire/test_paths.py" in chosen(quick, path)


@pytest.mark.parametrize("path", ["README.md", "benchmarks/server/run.py", "src/chockstone/wire/gone.py", "setup.py"])
def test_what_has_no_unit_test_selects_the_rules_alone(quick: ModuleType, path: str) -> None:
    assert chosen(quick, path) == []
