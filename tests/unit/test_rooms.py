"""Arrows between rooms and sub-rooms point down only, and torch stays where it belongs."""

from __future__ import annotations

import ast
import graphlib
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from support.source_trees import SOURCE, source_paths, source_trees

# Each room and what it may import of ours. ``cli`` is on top; ``checkpoints`` stands on nothing but itself.
ALLOWED: dict[str, set[str]] = {
    "cli": {"api", "backends", "catalog", "checkpoints", "console", "engine"}
    | {"integrations", "telemetry", "trackers", "trainers", "wire"},
    "console": {"api", "catalog", "checkpoints", "engine", "wire"},
    "api": {"backends", "catalog", "checkpoints", "engine", "telemetry", "trackers", "wire"},
    "engine": {"backends", "catalog", "checkpoints", "telemetry", "trackers", "wire"},
    "backends": {"checkpoints", "sampling", "telemetry", "wire"},
    "sampling": {"wire"},
    "catalog": {"telemetry", "wire"},
    "trainers": {"checkpoints", "trackers"},
    "trackers": {"checkpoints"},
    "integrations": {"checkpoints"},
    "checkpoints": set(),
    "telemetry": set(),
    "wire": set(),
}
FOR_ALL = {"extras", "lazy_names"}  # files beside the rooms, which every room may import
TORCH_AT_IMPORT = {"backends", "sampling"}  # rooms whose modules may import torch at the top
TORCH_INTEGRATIONS = {
    "accelerate",
    "dcp",
    "hf_trainer",
    "lightning",
}  # packages of integrations that may

MAX_FILES: Final = 16  # of one folder, with its __init__.py

# The parts of ``checkpoints`` from the bottom up: a part may import those before it.
CHECKPOINTS_ORDER: Final = [
    "errors",
    "runtime",
    "format",
    "stores",
    "reading",
    "retention",
    "saving",
    "restoring",
    "ranks",
    "file_archive",
    "state_archive",
    "checkpointer",
    "resume",
]

# The parts of ``backends`` from the bottom up: a part may import those before it.
BACKENDS_ORDER: Final = [
    "run_spec",
    "protocol",
    "channel",
    "calls",
    "importing",
    "losses",
    "quantisation",
    "export",
    "memory",
    "training",
    "planning",
    "supervision",
    "worker",
    "fsdp",
    "ray",
]


def shown(path: Path) -> str:
    return str(path.relative_to(SOURCE))


@cache
def import_statements(path: Path) -> list[ast.Import | ast.ImportFrom]:
    return [node for node in ast.walk(source_trees()[path]) if isinstance(node, ast.Import | ast.ImportFrom)]


def imports(path: Path, *, top_level_only: bool = False) -> set[str]:
    nodes = source_trees()[path].body if top_level_only else import_statements(path)
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


def test_imports_point_down() -> None:
    found: dict[str, set[str]] = {}
    for path in source_paths():
        parts = path.relative_to(SOURCE).parts
        allowed = ALLOWED[parts[0]] | {parts[0]} | FOR_ALL if len(parts) > 1 else FOR_ALL
        used = {name.split(".")[1] for name in imports(path) if name.startswith("chockstone.")}
        found[shown(path)] = used - allowed

    assert not {path: rooms for path, rooms in found.items() if rooms}, "these files import rooms that they must not"


def test_the_engine_sees_of_backends_the_protocol_only() -> None:
    found = {
        shown(path): [name for name in imports(path) if name.startswith("chockstone.backends")]
        for path in sorted((SOURCE / "engine").rglob("*.py"))
    }

    assert any(found.values())
    assert not {path: names for path, names in found.items() if set(names) - {"chockstone.backends.protocol"}}


def may_import_torch(room: str, *inner: str) -> bool:
    return room in TORCH_AT_IMPORT or (room == "integrations" and inner[0] in TORCH_INTEGRATIONS)


def test_torch_is_imported_only_when_it_is_needed() -> None:
    importing = [
        path for path in source_paths() if "torch" in {n.split(".")[0] for n in imports(path, top_level_only=True)}
    ]

    assert importing
    assert not [shown(path) for path in importing if not may_import_torch(*path.relative_to(SOURCE).parts)]


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("chockstone", {"torch", "numpy", "rich", "typer"}),
        ("chockstone.checkpoints", {"torch", "rich", "typer", "obstore", "boto3"}),
        ("chockstone.checkpoints.errors", {"torch", "numpy", "asyncio"}),
        ("chockstone.cli", {"torch", "numpy", "obstore", "boto3", "fastapi", "sqlalchemy"}),
        ("chockstone.cli.app", {"torch", "numpy", "rich", "asyncio", "pydantic", "chockstone.cli.settings"}),
        ("chockstone.trainers", {"torch", "tinker"}),
        ("chockstone.integrations.flyte.checkpointer", {"torch"}),
        ("chockstone.integrations.flyte.layouts", {"torch", "numpy", "flytekit"}),
        ("chockstone.integrations.hf_trainer", {"torch", "transformers"}),
        ("chockstone.integrations.hf_trainer.directory", {"transformers"}),
        ("chockstone.api.app", {"torch", "transformers", "alembic"}),
        ("chockstone.console.app", {"torch", "transformers", "tokenizers"}),
        ("chockstone.backends.protocol", {"torch", "numpy"}),
        ("chockstone.backends.supervision.vllm_backend", {"torch", "transformers"}),
    ],
)
def test_importing_a_room_loads_only_what_it_needs(module: str, absent: set[str]) -> None:
    code = f"import sys, {module}; print(*sys.modules)"

    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()

    assert absent.isdisjoint(loaded)


def module_name(path: Path) -> str:
    """``engine.runs.lanes`` of engine/runs/lanes.py, ``engine.runs`` of the room itself."""
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix("__init__").removesuffix(".")


def imported_modules(path: Path, known: set[str]) -> set[str]:
    """The modules of ours that a file imports, by the names of ``module_name``."""
    found: set[str] = set()
    for node in import_statements(path):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("chockstone."):
            parent = (node.module or "").removeprefix("chockstone.")
            found |= {f"{parent}.{a.name}" if f"{parent}.{a.name}" in known else parent for a in node.names}
        elif isinstance(node, ast.Import):
            found |= {a.name.removeprefix("chockstone.") for a in node.names if a.name.startswith("chockstone.")}
    return found


def arrows(folder: Path) -> dict[str, set[str]]:
    """Which direct parts of a folder (files and sub-rooms) import which others."""
    room = module_name(folder / "__init__.py")
    known = {module_name(path) for path in source_paths()}
    found: dict[str, set[str]] = {}
    for path in sorted(folder.rglob("*.py")):
        if path == folder / "__init__.py":
            continue  # exports names of all parts
        part = _part_of(room, module_name(path))
        targets = {_part_of(room, name) for name in imported_modules(path, known) if name.startswith(f"{room}.")}
        found.setdefault(part, set()).update(targets - {part})
    return found


def _part_of(room: str, module: str) -> str:
    return f"{room}.{module.removeprefix(f'{room}.').split('.')[0]}"


def folders() -> list[Path]:
    return sorted({path.parent for path in source_paths()} - {SOURCE})


def rooms_with_parts() -> list[Path]:
    return [folder for folder in folders() if any(other.parent == folder for other in folders())]


def cycle_in(folder: Path) -> list[str]:
    try:
        graphlib.TopologicalSorter(arrows(folder)).prepare()
    except graphlib.CycleError as error:
        return list(error.args[1])
    return []


def test_the_parts_of_a_room_import_each_other_without_a_cycle() -> None:
    cycles = {shown(folder): cycle_in(folder) for folder in rooms_with_parts()}

    assert not {folder: cycle for folder, cycle in cycles.items() if cycle}


@pytest.mark.parametrize(("room", "parts"), [("checkpoints", CHECKPOINTS_ORDER), ("backends", BACKENDS_ORDER)])
def test_the_parts_of_a_room_import_in_the_order_of_the_table(room: str, parts: list[str]) -> None:
    graph = arrows(SOURCE / room)
    order = {f"{room}.{part}": number for number, part in enumerate(parts)}

    assert set(graph) == set(order)
    assert not [(part, other) for part, others in graph.items() for other in others if order[other] > order[part]]


def test_a_folder_shows_few_files() -> None:
    counts = {shown(folder): len(list(folder.glob("*.py"))) for folder in folders()}

    assert not {folder: files for folder, files in counts.items() if files > MAX_FILES}
