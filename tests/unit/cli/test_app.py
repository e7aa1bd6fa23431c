from __future__ import annotations

import os
import re
import subprocess

import pytest
from typer.testing import CliRunner

import chockstone
from chockstone.cli.app import app
from support.cli.commands import COMMANDS, ask_for_help
from support.cli.store_commands import PROGRAM


def test_the_program_tells_its_version() -> None:
    result = subprocess.run([*PROGRAM, "--version"], capture_output=True, text=True, check=True, timeout=60)

    assert result.stdout == f"chockstone {chockstone.__version__}\n"


def test_the_help_of_the_program_fits_a_terminal_and_cuts_no_sentence() -> None:
    text = ask_for_help("")

    assert max(map(len, text.splitlines())) <= 80
    assert not re.search(r"\w\.\.\.$", text, re.MULTILINE)
    assert "--install-completion" in text


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_each_command_fits_a_terminal_and_cuts_no_sentence(command: str) -> None:
    text = ask_for_help(command)

    assert max(map(len, text.splitlines())) <= 80, [line for line in text.splitlines() if len(line) > 80]
    assert not re.search(r"\w\.\.\.$", text, re.MULTILINE)


def test_the_commands_that_moved_are_not_where_they_were() -> None:
    for words in (["checkpoints", "trash"], ["checkpoints", "policy"], ["checkpoints", "undelete", "1"]):
        assert CliRunner().invoke(app, words).exit_code == 2


@pytest.mark.parametrize(
    ("words", "found"), [("chockstone tr", {"train", "trash"}), ("chockstone runs r", {"recoveries", "rm"})]
)
def test_a_shell_completes_commands(words: str, found: set[str]) -> None:
    environment = os.environ | {
        "_CHOCKSTONE_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
    }
    program = "from chockstone.cli import main; main()"
    command = [PROGRAM[0], "-c", program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)

    assert set(done.stdout.split()) == found
