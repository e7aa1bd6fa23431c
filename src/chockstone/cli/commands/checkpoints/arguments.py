"""Options of several commands on checkpoints, and checks of what was given together."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

Kind = Literal["weights", "sampler_weights", "external_weights"]

Prefix = Annotated[
    str, typer.Option(metavar="PREFIX", help="Limit a store to names below this prefix, such as one run's.")
]
RunOption = Annotated[
    str | None,
    typer.Option("--run", metavar="RUN", help="Limit a server to one run: its id, or a unique prefix of it."),
]
KindOption = Annotated[Kind | None, typer.Option("--kind", help="Limit a server to one kind of checkpoint.")]


def refuse(given: object, option: str, why: str) -> None:
    """A usage error if ``option`` was given."""
    if given:
        raise typer.BadParameter(f"{option} {why}")
