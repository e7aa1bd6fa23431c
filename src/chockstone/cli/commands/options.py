"""Options that mean the same in every command."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, TypeVar

import typer

T = TypeVar("T")

AsJson = Annotated[
    bool, typer.Option("--json", help="Print one JSON document: sizes in bytes, times in ISO 8601, ids in full.")
]
Debug = Annotated[bool, typer.Option("--debug", help="Print the traceback of an error.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="List the deletions and delete nothing.")]
Data = Annotated[
    str | None,
    typer.Option(metavar="DIRECTORY", show_default="as for `serve`", help="Data directory of the server."),
]
Database = Annotated[
    str | None,
    typer.Option(metavar="URL", show_default="as for `serve`", help="URL of the server's catalog."),
]
Yes = Annotated[
    bool, typer.Option("--yes", "-y", help="Skip the confirmation. Required if standard input is not a terminal.")
]

ServerUrl = Annotated[
    str,
    typer.Option("--server", metavar="URL", envvar="TINKER_BASE_URL", help="URL of the server, as `serve` prints it."),
]
Key = Annotated[
    str,
    typer.Option(
        "--key",
        metavar="tml-…",
        envvar="TINKER_API_KEY",
        help="API key. Prefer the environment variable: flags are visible to other users of the machine.",
    ),
]
RunWord = Annotated[str, typer.Argument(metavar="RUN", help="Id of a run, or a unique prefix of it.")]
PathWord = Annotated[
    str, typer.Argument(metavar="PATH", help="Path of a checkpoint on the server: tinker://RUN/KIND/NAME.")
]
# As `chockstone serve` starts without settings.
SERVER = "http://127.0.0.1:8000"
KEY = "tml-local"


def parsed(parse: Callable[[str], T], text: str, option: str) -> T:
    """``text`` read by ``parse``, whose ValueError is a mistake in ``option``."""
    try:
        return parse(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None
