"""Pages say what the program says: quoted messages, command lines and the systemd unit are the real ones."""

from __future__ import annotations

import ast
import configparser
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

from chockstone.cli.app import app
from support.source_trees import source_trees

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
HELP = ROOT / "docs" / "troubleshooting.md"
CONSOLE = re.compile(r"^ *```(?:console|bash|sh)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
OURS = re.compile(r"(?:^ *\$ |&& |\$\()(?:[A-Z_]+=\S+ )*(?:\S*/)?chockstone (?=[a-z-])")  # as the command of a line
QUOTED = re.compile(r"`([^`]+)`")
NAMES = re.compile(r"^(?:RUN|ROOT|STORE|PATH|USER|KEY_ID|COMMAND)$")


def messages() -> list[str]:
    """What the page quotes in headings, and in the columns of its tables that are called "message …"."""
    found: list[str] = []
    columns: list[int] = []
    for line in HELP.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        if line.startswith("### "):
            found += QUOTED.findall(line)
        elif not cells:
            columns = []
        elif any(cell.startswith("message") for cell in cells):
            columns = [number for number, cell in enumerate(cells) if cell.startswith("message")]
        else:
            found += [quoted for number in columns for quoted in QUOTED.findall(cells[number])]
    return found


@cache
def texts() -> str:
    """Every string of the program, a line each, with … for what it fills in."""
    lines = []
    for tree in source_trees().values():
        for node in ast.walk(tree):
            if isinstance(node, ast.JoinedStr):
                parts = (part.value if isinstance(part, ast.Constant) else "…" for part in node.values)
                lines.append("".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                lines.append(node.value)
    return "\n".join(line.replace("\n", " ") for line in lines)


def test_the_help_page_has_messages() -> None:
    assert len(messages()) > 40


@pytest.mark.parametrize("message", messages())
def test_a_message_on_the_help_page_is_one_that_the_program_says(message: str) -> None:
    pattern = "[^\n]*?".join(map(re.escape, message.split("…")))

    assert re.search(pattern, texts()), f"no string in src has {message!r}"


def command_lines(page: Path) -> Iterator[str]:
    """Commands of ours in the page's shell blocks, and in its text where one has a space in it."""
    text = page.read_text()
    for block in CONSOLE.findall(text):
        for line in block.replace("\\\n", " ").splitlines():
            yield from (line[found.end() :] for found in OURS.finditer(line))
    prose = re.sub(r"^ *```.*?^ *```$", "", text, flags=re.MULTILINE | re.DOTALL)
    for quoted in QUOTED.findall(prose):
        if quoted.startswith("chockstone ") and "\n" not in quoted:
            yield quoted.removeprefix("chockstone ")


@cache
def root_command() -> Any:  # Any: typer's own kind of click
    return typer.main.get_command(app)


def unknown_words(line: str) -> list[str]:
    """What the command line interface has no command or option for."""
    words = shlex.split(re.split(r" [|&;<>]|\)", line)[0], comments=True)
    command = root_command()
    while (known := getattr(command, "commands", None)) and words and not words[0].startswith("-"):
        name, *words = words
        if NAMES.match(name) or "…" in name:
            return []
        if name not in known:
            return [name]
        command = known[name]
    taken = {"--help", *(option for each in command.params for option in (*each.opts, *each.secondary_opts))}
    options = {word.partition("=")[0] for word in words if word.startswith("-") and word not in ("-", "…")}
    return sorted(option for option in options if option not in taken)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_on_the_page_exist_with_their_options(page: Path) -> None:
    lines = list(command_lines(page))

    assert {line: unknown for line in lines if (unknown := unknown_words(line))} == {}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_page_kills_processes_by_a_pattern(page: Path) -> None:
    """It would also end the servers of others, and the shell that the pattern is typed into."""
    assert not re.search(r"\bpkill\b|\bkillall\b", page.read_text())


def test_the_unit_of_the_guide_is_the_shipped_one() -> None:
    guide = (ROOT / "docs" / "guides" / "survive-crashes.md").read_text()
    shipped, shown = configparser.ConfigParser(strict=False), configparser.ConfigParser()
    shipped.optionxform = shown.optionxform = str  # type: ignore[assignment,method-assign]
    shipped.read(ROOT / "deploy" / "chockstone.service")
    [block] = re.findall(r"^```ini\n(.*?)^```$", guide, re.MULTILINE | re.DOTALL)

    shown.read_string(block)

    assert shown.sections() == ["Unit", "Service"]
    for section in shown.sections():
        assert dict(shown[section]).items() <= dict(shipped[section]).items()
