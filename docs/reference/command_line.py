"""Writes command-line.md from the command line's own help. `make reference` runs it; a test holds it current."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from chockstone.cli.app import app

PAGE = Path(__file__).with_name("command-line.md")
COMMANDS = (
    "",
    "serve",
    "train",
    "model",
    "model make",
    "model pull",
    "runs",
    *(f"runs {name}" for name in ("ls", "show", "recoveries")),
    "checkpoints",
    *(f"checkpoints {name}" for name in ("ls", "show", "verify", "export", "download", "rm", "gc", "diff")),
    *(f"checkpoints {name}" for name in ("publish", "unpublish", "ttl", "copy", "undelete", "trash", "trash empty")),
    "checkpoints policy",
    *(f"checkpoints policy {name}" for name in ("show", "set", "remove")),
    "resume",
    "resume explain",
    "storage",
    "doctor",
    "keys",
    *(f"keys {name}" for name in ("create", "ls", "revoke")),
)


def render() -> str:
    title = "# The command line\n\nWritten by `make reference` from the `--help` of each command.\n"
    sections = (f"## `{f'chockstone {command}'.rstrip()}`\n\n```text\n{ask(command)}\n```\n" for command in COMMANDS)
    return "\n".join((title, *sections))


def ask(command: str) -> str:
    environment = {"COLUMNS": "100", "TERM": "dumb", "NO_COLOR": "1"}
    done = CliRunner().invoke(app, [*command.split(), "--help"], prog_name="chockstone", env=environment)
    assert done.exit_code == 0, done.output
    return done.output.rstrip()


if __name__ == "__main__":
    PAGE.write_text(render())
