"""Options that mean the same in every command."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, TypeVar

import typer

T = TypeVar("T")

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document; sizes in bytes, times in ISO form.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say what would be removed.")]
Data = Annotated[
    str | None,
    typer.Option(metavar="DIRECTORY", show_default="as `serve` finds it", help="Directory of the server's data."),
]
Database = Annotated[
    str | None,
    typer.Option(metavar="URL", show_default="as `serve` finds it", help="URL of the server's catalog."),
]
Yes = Annotated[
    bool, typer.Option("--yes", "-y", help="Do not ask for confirmation. Needed if standard input is no terminal.")
]

ServerUrl = Annotated[
    str, typer.Option("--server", metavar="URL", envvar="TINKER_BASE_URL", help="The server to ask, as `serve` says.")
]
Key = Annotated[
    str,
    typer.Option("--key", metavar="tml-…", envvar="TINKER_API_KEY", help="Who asks; the environment hides it."),
]
PathWord = Annotated[
    str, typer.Argument(metavar="PATH", help="A checkpoint of the server, tinker://RUN/KIND/NAME as `ls` shows it.")
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
