"""``chockstone policy``: the retention rules and quotas of a server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from chockstone.cli.commands.options import KEY, SERVER, AsJson, Debug, Key, ServerUrl, parsed
from chockstone.cli.output.exit_codes import EXIT_CODES
from chockstone.cli.output.formatting import parse_best, parse_duration, parse_size
from chockstone.cli.output.reporting import reporting

if TYPE_CHECKING:
    from chockstone.checkpoints import Retention
    from chockstone.cli.remote.client import Server

commands = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None, epilog=EXIT_CODES)

OfRun = Annotated[
    str | None, typer.Option("--run", metavar="RUN", help="Scope: one run, by its id or a unique prefix of it.")
]
OfUser = Annotated[str | None, typer.Option("--user", metavar="USER", help="Scope: each run of this user.")]
OfMine = Annotated[bool, typer.Option("--mine", help="Scope: each run of yours.")]
OfAll = Annotated[bool, typer.Option("--global", help="Scope: all runs of all users; for admins.")]
Preview = Annotated[
    bool, typer.Option("--dry-run", help="List the deletions of the next sweep with reasons, and change nothing.")
]
KeepLast = Annotated[int | None, typer.Option(metavar="K", min=1, help="Keep the newest K checkpoints.")]
KeepEvery = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="Keep checkpoints whose step is divisible by N.")
]
KeepBest = Annotated[
    str | None,
    typer.Option(metavar="METRIC[:min|max[:COUNT]]", help="Keep the best COUNT checkpoints by a saved metric."),
]
MaxAge = Annotated[
    str | None, typer.Option(metavar="AGE", help="Delete checkpoints that are older than AGE: 90s, 15m, 12h, 7d, 2w.")
]
Pins = Annotated[list[str] | None, typer.Option(metavar="NAME", help="Keep the checkpoint of this name (repeatable).")]


@commands.callback()
def policy() -> None:
    """Show and set retention rules and quotas of a server.

    The rules of the most specific scope apply as a whole: the run, otherwise its user, otherwise --global,
    otherwise the options of `serve`. The quotas of all scopes apply together.

    \b
    Examples:
      chockstone policy show
      chockstone policy set --run RUN --keep-last 3 --keep-best loss:min --dry-run
    """


@commands.command(epilog=EXIT_CODES)
def show(
    run: OfRun = None,
    user: OfUser = None,
    everyone: OfAll = False,
    server: ServerUrl = SERVER,
    key: Key = KEY,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Show the policies that you may see, and the server's defaults.

    \b
    Example:
      chockstone policy show
    """
    with reporting(as_json=as_json, debug=debug):
        from chockstone.cli.remote.client import connect
        from chockstone.cli.remote.policies import show_policies

        asked = connect(server, key)
        scope = _scope(asked, run, user, everyone) if run or user or everyone else None
        show_policies(asked, scope, as_json=as_json)


@commands.command("set", epilog=EXIT_CODES)
def set_(
    run: OfRun = None,
    user: OfUser = None,
    mine: OfMine = False,
    everyone: OfAll = False,
    keep_last: KeepLast = None,
    keep_every: KeepEvery = None,
    keep_best: KeepBest = None,
    ttl: MaxAge = None,
    pin: Pins = None,
    quota: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Maximum size of all checkpoints of the scope: 500MB, 50GiB.")
    ] = None,
    dry_run: Preview = False,
    server: ServerUrl = SERVER,
    key: Key = KEY,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Set the policy of a scope, and replace the previous one.

    A checkpoint stays if any --keep rule keeps it. The rules apply to each run and kind separately.
    Published checkpoints and the newest good one always stay. The next sweep applies the policy, within
    about a minute (`serve --sweep-interval`).

    \b
    Examples:
      chockstone policy set --run RUN --keep-last 3 --keep-best loss:min --dry-run
      chockstone policy set --mine --keep-last 5
      chockstone policy set --user ann --ttl 2w --quota 500GiB
    """
    with reporting(as_json=as_json, debug=debug):
        from chockstone.cli.remote.client import connect
        from chockstone.cli.remote.policies import preview_policy, set_policy

        rules = read_rules(keep_last=keep_last, keep_every=keep_every, keep_best=keep_best, ttl=ttl, pin=pin)
        if quota is not None:
            rules["quota_bytes"] = parsed(parse_size, quota, "--quota")
        if not rules:
            raise typer.BadParameter("name a rule, such as --keep-last 3; `chockstone policy remove` removes a policy")
        asked = connect(server, key)
        scope = _scope(asked, run, user, everyone, mine)
        carry_out = preview_policy if dry_run else set_policy
        carry_out(asked, scope, rules, as_json=as_json)


@commands.command(epilog=EXIT_CODES)
def remove(
    run: OfRun = None,
    user: OfUser = None,
    mine: OfMine = False,
    everyone: OfAll = False,
    dry_run: Preview = False,
    server: ServerUrl = SERVER,
    key: Key = KEY,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Remove the policy of a scope; the next wider scope applies.

    \b
    Example:
      chockstone policy remove --run RUN --dry-run
    """
    with reporting(as_json=as_json, debug=debug):
        from chockstone.cli.remote.client import connect
        from chockstone.cli.remote.policies import preview_policy, remove_policy

        asked = connect(server, key)
        scope = _scope(asked, run, user, everyone, mine)
        if dry_run:
            preview_policy(asked, scope, None, as_json=as_json)
        else:
            remove_policy(asked, scope, as_json=as_json)


def read_rules(
    *, keep_last: int | None, keep_every: int | None, keep_best: str | None, ttl: str | None, pin: list[str] | None
) -> dict[str, Any]:  # Any: JSON
    """The retention rules of the options, as a server takes them; empty if no rule is given."""
    rules: dict[str, Any] = {"keep_last": keep_last, "keep_every": keep_every, "pinned": pin or None}
    if keep_best is not None:
        metric, mode, count = parsed(parse_best, keep_best, "--keep-best")
        rules["keep_best"] = {"metric": metric, "mode": mode, "count": count}
    if ttl is not None:
        rules["ttl_seconds"] = parsed(parse_duration, ttl, "--ttl")
    return {name: rule for name, rule in rules.items() if rule is not None}


def read_retention(
    *, keep_last: int | None, keep_every: int | None, keep_best: str | None, ttl: str | None, pin: list[str] | None
) -> Retention:
    """The retention rules of the options, as the library takes them."""
    from chockstone.checkpoints import Best, Retention

    return Retention(
        keep_last=keep_last,
        keep_every=keep_every,
        keep_best=None if keep_best is None else Best(*parsed(parse_best, keep_best, "--keep-best")),
        pinned=frozenset(pin or ()),
        ttl_seconds=None if ttl is None else parsed(parse_duration, ttl, "--ttl"),
    )


def _scope(server: Server, run: str | None, user: str | None, everyone: bool, mine: bool = False) -> str:
    from chockstone.cli.remote.addresses import find_run

    if [run is not None, user is not None, everyone, mine].count(True) != 1:
        raise typer.BadParameter("name one scope: --run RUN, --mine, --user USER or --global")
    if run is not None:
        return f"run:{find_run(server, run)}"
    if mine:
        return "mine"
    return "global" if everyone else f"user:{user}"
