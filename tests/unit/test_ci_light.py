"""`make light` runs the tests that need only the plain install, on other versions of Python."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

from support.source_trees import uncollected

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def light() -> ModuleType:
    spec = importlib.util.spec_from_file_location("light", ROOT / ".ci" / "light.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with uncollected():
        module.select()  # parses hundreds of files and keeps what they import
    return module


def test_the_tests_of_every_part_of_the_library_are_chosen(light: ModuleType) -> None:
    chosen = {str(path.relative_to(ROOT / "tests" / "unit")) for path in light.select()}

    assert {
        "checkpoints/behaviour/test_damage.py",
        "checkpoints/behaviour/test_never_block.py",
        "checkpoints/behaviour/test_numpy_states.py",
        "checkpoints/format/test_tar.py",
        "checkpoints/reading/test_archive.py",
        "checkpoints/restoring/test_export.py",
        "checkpoints/restoring/test_walk_back.py",
        "checkpoints/resume/test_explain.py",
        "checkpoints/resume/walk/test_chain.py",
        "checkpoints/retention/test_policy.py",
        "checkpoints/runtime/test_watchdog.py",
        "checkpoints/saving/test_job.py",
        "checkpoints/stores/test_store_contract.py",
        "checkpoints/test_checkpointer.py",
        "cli/commands/checkpoints/test_contents.py",
        "cli/commands/test_resume.py",
        "cli/local/test_inventory.py",
    } <= chosen
    assert len(chosen) > 90


@pytest.mark.parametrize(
    ("path", "packages"),
    [
        ("tests/unit/checkpoints/restoring/test_restore.py", {"torch"}),
        ("tests/unit/checkpoints/stores/test_s3_bucket.py", {"boto3", "botocore", "obstore"}),
        ("tests/unit/cli/local/test_api_keys.py", {"sqlalchemy"}),
    ],
)
def test_what_needs_more_is_not_chosen(light: ModuleType, path: str, packages: set[str]) -> None:
    missing = set().union(*(light.missing_in(each) for each in light.reachable(ROOT / path)))

    assert packages <= missing
    assert ROOT / path not in light.select()


def test_a_python_that_is_absent_is_skipped_with_a_message(
    light: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert light.main(["3.99"]) == 0
    assert capsys.readouterr().out == "light: skipped, because this machine has no Python 3.99\n"


def test_pythons_are_declared_as_far_as_they_are_tested() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    [tested] = re.findall(r"^LIGHT +:= (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)

    declared = {text.rpartition(" ")[2] for text in project["classifiers"] if re.search(r":: 3\.\d+$", text)}

    assert declared == {"3.11", *tested.split()}
    assert re.search(r"^make .*\blight dist\b", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)
