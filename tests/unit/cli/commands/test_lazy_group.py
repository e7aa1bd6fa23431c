from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from typer.testing import CliRunner

from chockstone.cli.app import Program, app
from chockstone.cli.commands.checkpoints.group import CheckpointCommands
from chockstone.cli.commands.lazy_group import LazyGroup

GROUPS = {"": Program, "checkpoints": CheckpointCommands}


def names(group: type[LazyGroup]) -> list[str]:
    return list(group.lines())


@pytest.mark.parametrize(
    ("words", "group", "name"), [(words, group, name) for words, group in GROUPS.items() for name in names(group)]
)
def test_the_line_of_a_command_is_the_first_of_its_own_help(words: str, group: type[LazyGroup], name: str) -> None:
    command: Any = group(name="group").get_command(None, name)

    first = command.help.partition("\n\n")[0].replace("\n", " ")

    assert group.lines()[name].help == first
    assert command.name == name


@pytest.mark.parametrize("words", GROUPS)
def test_the_help_of_a_group_has_all_lines_whole(words: str) -> None:
    result = CliRunner().invoke(app, [*words.split(), "--help"], env={"COLUMNS": "80", "TERM": "dumb"})

    lines = result.stdout.partition(f"{next(iter(GROUPS[words].PANELS))}:\n")[2].splitlines()
    shown = " ".join(" ".join(lines).split())
    assert [name for name, line in GROUPS[words].lines().items() if f"{name} {line.help}" not in shown] == []
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("words", ["wrong", "checkpoints wrong"])
def test_an_unknown_command_is_a_usage_error(words: str) -> None:
    result = CliRunner().invoke(app, words.split())

    assert result.exit_code == 2
    assert "No such command 'wrong'" in result.stderr


@pytest.mark.parametrize(
    ("words", "own", "absent"),
    [
        ("--help", [], ["commands.serve", "commands.train", "commands.keys", "commands.checkpoints", "settings"]),
        ("--version", [], ["commands.serve", "commands.train", "commands.keys", "commands.checkpoints", "settings"]),
        ("runs --help", ["commands.runs"], ["commands.serve", "commands.train", "settings"]),
        ("checkpoints --help", ["commands.checkpoints.group"], ["commands.checkpoints.contents", "commands.serve"]),
        ("checkpoints ls --help", ["commands.checkpoints.contents"], ["commands.checkpoints.removal", "settings"]),
    ],
)
def test_a_command_imports_its_own_module_only(words: str, own: list[str], absent: list[str]) -> None:
    code = (
        "import sys\n"
        "from chockstone.cli import main\n"
        f"sys.argv = ['chockstone', *{words.split()!r}]\n"
        "try:\n    main()\n"
        "except SystemExit:\n    print('LOADED', *sys.modules)\n"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)

    loaded = set(done.stdout.rpartition("LOADED")[2].split())
    assert {f"chockstone.cli.{name}" for name in own} <= loaded
    assert not {f"chockstone.cli.{name}" for name in absent} & loaded
    assert not {"numpy", "torch", "asyncio", "chockstone.checkpoints"} & loaded


def test_a_command_that_asks_a_server_loads_no_numpy() -> None:
    code = (
        "import sys\n"
        "from chockstone.cli import main\n"
        "sys.argv = ['chockstone', 'runs', 'ls', '--server', 'http://127.0.0.1:1']\n"
        "try:\n    main()\n"
        "except SystemExit as end:\n    print(end.code, 'numpy' in sys.modules)\n"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)

    assert done.stdout.split() == ["3", "False"]
