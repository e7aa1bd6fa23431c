"""Arrows between rooms point down only, and torch stays where it belongs."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "chockstone"

# Each room and what it may import of ours. ``cli`` is on top; ``checkpoints`` stands on nothing but itself.
ALLOWED: dict[str, set[str]] = {
    "cli": {"api", "backends", "catalog", "checkpoints", "engine", "integrations", "trainers", "wire"},
    "api": {"backends", "catalog", "checkpoints", "engine", "wire"},
    "engine": {"backends", "catalog", "checkpoints", "wire"},
    "backends": {"checkpoints", "sampling", "wire"},
    "sampling": {"wire"},
    "catalog": {"wire"},
    "trainers": {"checkpoints"},
    "integrations": {"checkpoints"},
    "checkpoints": set(),
    "wire": set(),
}
TORCH_AT_IMPORT = {"backends", "sampling"}  # rooms whose modules may import torch at the top


def modules() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def imports(path: Path, *, top_level_only: bool = False) -> set[str]:
    tree = ast.parse(path.read_text())
    nodes = tree.body if top_level_only else list(ast.walk(tree))
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found.add(node.module or "")
    return found


def test_every_room_is_in_the_table() -> None:
    rooms = {path.name for path in SOURCE.iterdir() if path.is_dir() and path.name != "__pycache__"}

    assert rooms == set(ALLOWED)


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_down(path: Path) -> None:
    parts = path.relative_to(SOURCE).parts
    room = parts[0] if len(parts) > 1 else None

    used = {name.split(".")[1] for name in imports(path) if name.startswith("chockstone.")}

    allowed = ALLOWED[room] | {room} if room else set()
    assert used <= allowed, f"{room} must not import {used - allowed}"


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_torch_is_imported_only_when_it_is_needed(path: Path) -> None:
    top = {name.split(".")[0] for name in imports(path, top_level_only=True)}

    assert "torch" not in top or path.relative_to(SOURCE).parts[0] in TORCH_AT_IMPORT


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("chockstone", {"torch", "numpy", "rich", "typer"}),
        ("chockstone.checkpoints", {"torch", "rich", "typer", "obstore", "boto3"}),
        ("chockstone.cli", {"torch", "numpy", "obstore", "boto3", "fastapi", "sqlalchemy"}),
        ("chockstone.trainers", {"torch", "tinker"}),
        ("chockstone.integrations.flyte.checkpointer", {"torch"}),
        ("chockstone.integrations.flyte.layouts", {"torch", "numpy", "flytekit"}),
        ("chockstone.api.app", {"torch", "transformers", "alembic"}),
        ("chockstone.backends.supervision.vllm_backend", {"torch", "transformers"}),
    ],
)
def test_importing_a_room_loads_only_what_it_needs(module: str, absent: set[str]) -> None:
    code = f"import sys, {module}; print(*sys.modules)"

    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()

    assert absent.isdisjoint(loaded)
