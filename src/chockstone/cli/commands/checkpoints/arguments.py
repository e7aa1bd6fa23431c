"""Options of several commands on checkpoints, and checks of what was given together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from chockstone.wire.paths import TinkerPath

Kind = Literal["weights", "sampler_weights", "external_weights"]

Prefix = Annotated[str, typer.Option(metavar="PREFIX", help="Of a store, only names below this, such as a run's.")]
RunOption = Annotated[
    str | None, typer.Option("--run", metavar="RUN", help="Of a server, only this run's, as `runs ls` shows it.")
]
KindOption = Annotated[Kind | None, typer.Option("--kind", help="Of a server, only this kind.")]


def refuse(given: object, option: str, why: str) -> None:
    """A usage error if ``option`` was given."""
    if given:
        raise typer.BadParameter(f"{option} {why}")


def parse_paths(*words: str) -> list[TinkerPath]:
    from chockstone.cli.remote.addresses import find_path

    return [find_path(word) for word in words]
