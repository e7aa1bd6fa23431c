"""Run the tests of the plain install, without torch and without a server, on another version of Python.

    python .ci/light.py VERSION [PYTEST ARGUMENT ...]

Makes the environment .venv-light-VERSION, installs this project into it without extras, and runs every unit test that
needs nothing else: the test, its fixtures and the sources that these import name only the packages of the plain install
and of the test tools. Where the machine has no such Python, it says so and exits 0.
"""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
TOOLS: Final = ("hypothesis", "pytest", "pytest-asyncio", "pytest-timeout", "pytest-xdist")  # versions: as in `dev`
PACKAGES: Final = {"hypothesis", "numpy", "pytest", "rich", "typer", "xxhash"} | sys.stdlib_module_names
FOLDERS: Final = ("tests/unit/checkpoints", "tests/unit/cli")
ROOTS: Final = {"chockstone": ROOT / "src", "support": ROOT / "tests", "unit": ROOT / "tests"}


def select() -> list[Path]:
    """The test files that need only the plain install."""
    paths = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("test_*.py"))]
    return [path for path in paths if all(is_light(part) for part in (path, *conftests(path)))]


def conftests(test: Path) -> Iterator[Path]:
    for folder in test.relative_to(ROOT).parents:
        if (path := ROOT / folder / "conftest.py").is_file():
            yield path


def is_light(path: Path) -> bool:
    """Whether a file, and every file of ours that it imports, can be imported in a plain install."""
    return not any(missing_in(each) for each in reachable(path))


@cache
def reachable(path: Path) -> frozenset[Path]:
    found, waiting = {path}, [path]
    while waiting:
        for name in imports(waiting.pop()):
            for each in files_of(name):
                if each not in found:
                    found.add(each)
                    waiting.append(each)
    return frozenset(found)


@cache
def missing_in(path: Path) -> frozenset[str]:
    """The packages that a file imports, or requires when it is imported, and a plain install lacks."""
    calls = [node.value for node in _parsed(path).body if isinstance(node, ast.Expr)]
    required = {
        ast.unparse(call) for call in calls if isinstance(call, ast.Call) and ast.unparse(call.func) == "require"
    }
    return (frozenset(name.partition(".")[0] for name in imports(path)) - PACKAGES - ROOTS.keys()) | required


@cache
def imports(path: Path) -> frozenset[str]:
    """The modules that a file imports: when it is imported; of a test also when it runs."""
    everywhere = path.name.startswith("test_")
    return frozenset(_imports(_parsed(path), everywhere=everywhere))


@cache
def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def _imports(node: ast.AST, *, everywhere: bool) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom) and child.module:
            yield child.module
            yield from (f"{child.module}.{alias.name}" for alias in child.names)
        elif isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            yield from (name for other in child.orelse for name in _imports(other, everywhere=everywhere))
        elif everywhere or not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _imports(child, everywhere=everywhere)


@cache
def files_of(module: str) -> tuple[Path, ...]:
    """The files that are run when a module of ours is imported."""
    parts = module.split(".")
    if parts[0] not in ROOTS:
        return ()
    places = [ROOTS[parts[0]].joinpath(*parts[:count]) for count in range(1, len(parts) + 1)]
    paths = [path for place in places for path in (place / "__init__.py", place.with_suffix(".py"))]
    return tuple(path for path in paths if path.is_file())


def find_python(version: str) -> str | None:
    """A Python of that version that runs. What is found first may be a shim without one behind it."""
    homes = [str(path) for path in sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin"), reverse=True)]
    for found in [shutil.which(f"python{version}"), *(shutil.which(f"python{version}", path=home) for home in homes)]:
        if found and not subprocess.run([found, "-c", "import venv"], capture_output=True, check=False).returncode:
            return found
    return None


def make_environment(python: str, version: str) -> Path:
    """The environment's Python. Made again when pyproject.toml has changed."""
    folder = ROOT / f".venv-light-{version}"
    installed, project = folder / "installed", (ROOT / "pyproject.toml").read_text()
    runner = folder / "bin" / "python"
    if installed.exists() and installed.read_text() == project:
        return runner
    shutil.rmtree(folder, ignore_errors=True)
    pins = tomllib.loads(project)["project"]["optional-dependencies"]["dev"]
    tools = [pin for pin in pins if re.split("[=<>]", pin)[0] in TOOLS]
    subprocess.run([python, "-m", "venv", folder], check=True)
    subprocess.run([runner, "-m", "pip", "install", "--quiet", "--editable", ROOT, *tools], check=True)
    installed.write_text(project)
    return runner


def main(arguments: list[str]) -> int:
    version, *others = arguments
    python = find_python(version)
    if python is None:
        print(f"light: skipped, because this machine has no Python {version}")
        return 0
    runner = make_environment(python, version)
    tests = [str(path.relative_to(ROOT)) for path in select()]
    print(f"light: {len(tests)} test files on Python {version}", flush=True)
    return subprocess.run([runner, "-m", "pytest", "-q", "-rfE", *others, *tests], cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
