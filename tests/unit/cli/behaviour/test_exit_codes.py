"""Every command ends with the codes of the one table, and the same code means the same everywhere."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path

import pytest
from typer.testing import CliRunner

import chockstone.cli
from chockstone.cli.app import app
from chockstone.cli.output.exit_codes import EXIT_CODES, ExitCode
from support.cli.commands import COMMANDS, LEAVES, ask_for_help

FILES = sorted(Path(chockstone.cli.__file__).parent.rglob("*.py"))
RUN = "01234567-89ab-cdef-0123-456789abcdef:train:0"
PATH = f"tinker://{RUN}/weights/a"
# For each command: words that lead to a code, without a server at hand. {tmp} is an empty directory.
CASES: Mapping[str, list[tuple[str, ExitCode]]] = {
    "serve": [("", ExitCode.USAGE), ("--model tiny={tmp}/none", ExitCode.USAGE), ("--port x", ExitCode.USAGE)],
    "train": [("", ExitCode.USAGE), ("--env nowhere:make --out {tmp}/o", ExitCode.USAGE)],
    "watch": [("--once", ExitCode.UNREACHABLE), ("extra", ExitCode.USAGE)],
    "model make": [("{tmp}/m --size 9T", ExitCode.USAGE), ("/proc/none", ExitCode.USAGE)],
    "model plan": [("", ExitCode.USAGE), ("{tmp}", ExitCode.USAGE)],
    "model pull": [("", ExitCode.USAGE)],  # others ask a hub
    "runs ls": [("", ExitCode.UNREACHABLE)],
    "runs show": [("", ExitCode.USAGE), (RUN, ExitCode.UNREACHABLE), ("a/b", ExitCode.USAGE)],
    "runs recoveries": [("", ExitCode.USAGE), (RUN, ExitCode.UNREACHABLE)],
    "runs metrics": [("", ExitCode.USAGE), (RUN, ExitCode.UNREACHABLE), ("a/b", ExitCode.USAGE)],
    "runs rm": [("", ExitCode.USAGE), (f"{RUN} --yes", ExitCode.UNREACHABLE)],
    "checkpoints ls": [
        ("", ExitCode.UNREACHABLE),
        ("{tmp}", ExitCode.OK),
        ("{tmp}/none", ExitCode.UNREACHABLE),
        ("{tmp} --run a", ExitCode.USAGE),
    ],
    "checkpoints show": [("{tmp} none", ExitCode.FAILED), (PATH, ExitCode.UNREACHABLE), ("{tmp}", ExitCode.USAGE)],
    "checkpoints verify": [
        ("{tmp}", ExitCode.FAILED),
        ("{tmp} none", ExitCode.FAILED),
        ("{tmp}/none", ExitCode.UNREACHABLE),
        ("", ExitCode.UNREACHABLE),
        ("{tmp} --run a", ExitCode.USAGE),
    ],
    "checkpoints diff": [
        ("{tmp} a b", ExitCode.FAILED),
        (f"{PATH} {PATH}", ExitCode.UNREACHABLE),
        ("", ExitCode.USAGE),
    ],
    "checkpoints export": [("{tmp} none {tmp}/o", ExitCode.FAILED), (f"{PATH} {{tmp}}/o", ExitCode.UNREACHABLE)],
    "checkpoints download": [(f"{PATH} {{tmp}}/f.tar", ExitCode.UNREACHABLE), ("{tmp} f", ExitCode.USAGE)],
    "checkpoints import": [
        ("{tmp} {tmp}/s", ExitCode.FAILED),
        ("{tmp}/none {tmp}/s", ExitCode.FAILED),
        ("{tmp}", ExitCode.USAGE),
        ("{tmp} {tmp}/s --all --name a", ExitCode.USAGE),
    ],
    "checkpoints rm": [
        ("", ExitCode.USAGE),
        ("{tmp} none --yes", ExitCode.FAILED),
        (f"{PATH} --yes", ExitCode.UNREACHABLE),
    ],
    "checkpoints gc": [
        ("", ExitCode.UNREACHABLE),
        ("{tmp} --keep-last 1", ExitCode.OK),
        ("--keep-last 1", ExitCode.USAGE),
    ],
    "checkpoints publish": [(PATH, ExitCode.UNREACHABLE), ("x", ExitCode.USAGE)],
    "checkpoints unpublish": [(PATH, ExitCode.UNREACHABLE), ("x", ExitCode.USAGE)],
    "checkpoints ttl": [(f"{PATH} 7d", ExitCode.UNREACHABLE), (f"{PATH} soon", ExitCode.USAGE)],
    "checkpoints copy": [(PATH, ExitCode.UNREACHABLE), ("x", ExitCode.USAGE)],
    "resume explain": [("{tmp}", ExitCode.OK), ("", ExitCode.USAGE), ("{tmp} --recorded", ExitCode.FAILED)],
    "storage": [("", ExitCode.UNREACHABLE)],
    "import": [("/nowhere --model tiny", ExitCode.FAILED), ("/nowhere", ExitCode.USAGE)],
    "alias ls": [("", ExitCode.UNREACHABLE)],
    "alias set": [(f"prod {PATH}", ExitCode.UNREACHABLE), ("prod", ExitCode.USAGE)],
    "alias history": [("prod", ExitCode.UNREACHABLE), ("", ExitCode.USAGE)],
    "alias undo": [("prod", ExitCode.UNREACHABLE), ("", ExitCode.USAGE)],
    "alias rm": [("prod", ExitCode.UNREACHABLE), ("", ExitCode.USAGE)],
    "samplers ls": [("", ExitCode.UNREACHABLE), ("--last 0", ExitCode.USAGE)],
    "samplers check": [(PATH, ExitCode.UNREACHABLE), ("", ExitCode.USAGE)],
    "replicas ls": [("", ExitCode.UNREACHABLE)],
    "replicas add": [("--no-wait", ExitCode.UNREACHABLE), ("x", ExitCode.USAGE)],
    "replicas drain": [("1", ExitCode.UNREACHABLE), ("", ExitCode.USAGE), ("x", ExitCode.USAGE)],
    "replicas undrain": [("1", ExitCode.UNREACHABLE), ("-1", ExitCode.USAGE)],
    "conversations ls": [("", ExitCode.UNREACHABLE), ("--limit 0", ExitCode.USAGE)],
    "conversations show": [("chatcmpl-1", ExitCode.UNREACHABLE), ("", ExitCode.USAGE)],
    "conversations export": [("{tmp}/d", ExitCode.UNREACHABLE), ("--loss-fn x", ExitCode.USAGE)],
    "conversations reward": [
        ("chatcmpl-1 -0.5", ExitCode.UNREACHABLE),
        ("chatcmpl-1", ExitCode.USAGE),
        ("chatcmpl-1 much", ExitCode.USAGE),
        ("chatcmpl-1 nan", ExitCode.USAGE),
    ],
    "conversations correct": [
        ("chatcmpl-1 --text no", ExitCode.UNREACHABLE),
        ("chatcmpl-1", ExitCode.USAGE),
        ("chatcmpl-1 --tokens a", ExitCode.USAGE),
        ("chatcmpl-1 --remove --tokens 1", ExitCode.USAGE),
    ],
    "conversations rm": [
        ("chatcmpl-1 --yes", ExitCode.UNREACHABLE),
        ("", ExitCode.USAGE),
        ("chatcmpl-1 --all", ExitCode.USAGE),
        ("chatcmpl-1 --model a", ExitCode.USAGE),
    ],
    "policy show": [("", ExitCode.UNREACHABLE)],
    "policy set": [("--mine --keep-last 1", ExitCode.UNREACHABLE), ("--mine", ExitCode.USAGE)],
    "policy remove": [("--mine", ExitCode.UNREACHABLE), ("", ExitCode.USAGE)],
    "trash undelete": [("1", ExitCode.UNREACHABLE), ("", ExitCode.USAGE)],
    "trash empty": [("--yes", ExitCode.UNREACHABLE)],
    "keys create": [("a --data {tmp}/d", ExitCode.OK), ("a/b --data {tmp}/d", ExitCode.USAGE)],
    "keys ls": [("--data {tmp}", ExitCode.UNREACHABLE)],
    "keys revoke": [("1 --data {tmp}", ExitCode.UNREACHABLE), ("", ExitCode.USAGE)],
    "audit": [("", ExitCode.UNREACHABLE), ("--day x", ExitCode.USAGE)],
    "doctor": [("--data {tmp}/none", ExitCode.USAGE), ("--data {tmp} --remove-damaged", ExitCode.USAGE)],
}


def invoke(command: str, words: str) -> int:
    environment = {"TINKER_BASE_URL": "http://127.0.0.1:9", "TINKER_API_KEY": "tml-local"}
    return CliRunner().invoke(app, [*command.split(), *words.split()], env=environment).exit_code


def test_every_command_is_tried() -> None:
    assert set(LEAVES) == set(CASES)


@pytest.mark.parametrize("command", CASES)
def test_a_command_ends_with_the_code_of_the_table(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if command.startswith("keys "):
        pytest.importorskip("sqlalchemy")  # `keys` is no part of the plain install
    monkeypatch.chdir(tmp_path)
    for words, code in CASES[command]:
        (tmp_path / "empty").mkdir(exist_ok=True)
        assert invoke(command, words.replace("{tmp}", str(tmp_path / "empty"))) == code, (command, words)


@pytest.mark.parametrize("command", COMMANDS)
def test_an_unknown_option_is_a_usage_error(command: str) -> None:
    assert invoke(command, "--no-such-option") == ExitCode.USAGE


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_every_command_names_the_codes(command: str) -> None:
    assert EXIT_CODES in " ".join(ask_for_help(command).split())


def test_a_server_that_is_no_url_is_a_usage_error() -> None:
    assert invoke("storage", "--server nonsense") == ExitCode.USAGE


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(FILES[0].parent)))
def test_no_command_ends_with_a_number_of_its_own(file: Path) -> None:
    """Each exit goes through ``ExitCode``: a bare number would not be in the table."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("typer.Exit", "sys.exit", "finish", "exit_now"):
            assert not any(isinstance(each, ast.Constant) for each in node.args), f"{file.name}:{node.lineno}"
        if isinstance(node, ast.Assign) and any(ast.unparse(target) == "exit_code" for target in node.targets):
            assert not isinstance(node.value, ast.Constant), f"{file.name}:{node.lineno}"
