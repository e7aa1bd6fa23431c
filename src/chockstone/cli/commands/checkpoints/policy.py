"""``chockstone checkpoints policy``: the retention rules of a server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from chockstone.cli.commands.options import KEY, SERVER, AsJson, Debug, Key, ServerUrl, parsed
from chockstone.cli.output.formatting import parse_best, parse_duration, parse_size
from chockstone.cli.output.reporting import EXIT_CODES, reporting

if TYPE_CHECKING:
    from chockstone.checkpoints import Retention

commands = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None, epilog=EXIT_CODES)

OfRun = Annotated[str | None, typer.Option("--run", metavar="RUN", help="Of this run.")]
OfUser = Annotated[str | None, typer.Option("--user", metavar="USER", help="Of each run of this user.")]
OfMine = Annotated[bool, typer.Option("--mine", help="Of each run of yours.")]
OfAll = Annotated[bool, typer.Option("--global", help="Of every run; for admins.")]
Preview = Annotated[bool, typer.Option("--dry-run", help="Only say what the next sweep would remove then, and why.")]


@commands.callback()
def policy() -> None:
    """See and set which checkpoints a server keeps, and how much.

    Rules for retention come whole from the most specific place that has a policy: the run, else its
    user, else everyone, else how the server was started. Quotas of all of them apply together.

    \b
    Examples:
      chockstone checkpoints policy set --run RUN --keep-last 3 --keep-best loss:min:2 --dry-run
      chockstone checkpoints policy show
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
    """Show the policies you may see, and how the server was started.

    \b
    Example:
      chockstone checkpoints policy show
    """
    with reporting(as_json=as_json, debug=debug):
        from chockstone.cli.remote.client import connect
        from chockstone.cli.remote.policies import show_policies

        scope = _scope(run, user, everyone) if run or user or everyone else None
        show_policies(connect(server, key), scope, as_json=as_json)


@commands.command("set", epilog=EXIT_CODES)
def set_(
    run: OfRun = None,
    user: OfUser = None,
    mine: OfMine = False,
    everyone: OfAll = False,
    keep_last: Annotated[int | None, typer.Option(metavar="K", min=1, help="Keep the newest K.")] = None,
    keep_every: Annotated[int | None, typer.Option(metavar="N", min=1, help="Keep steps divisible by N.")] = None,
    keep_best: Annotated[
        str | None, typer.Option(metavar="METRIC[:min|max[:COUNT]]", help="Keep the best by their metadata.")
    ] = None,
    ttl: Annotated[str | None, typer.Option(metavar="AGE", help="Remove what is older: 12h, 7d, 2w.")] = None,
    pin: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Keep this name; may be repeated.")] = None,
    quota: Annotated[str | None, typer.Option(metavar="SIZE", help="Of all checkpoints: 500MB, 50GiB.")] = None,
    dry_run: Preview = False,
    server: ServerUrl = SERVER,
    key: Key = KEY,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Set the policy of a run, a user or everyone, in place of the one it had.

    A checkpoint stays if any --keep rule wants it. Rules apply to each run and kind on its own. Published
    ones and the newest good one always stay. The next sweep, within a minute or so, applies it: --dry-run
    shows what would go, and sets nothing.

    \b
    Examples:
      chockstone checkpoints policy set --run RUN --keep-last 3 --keep-best loss:min:2 --dry-run
      chockstone checkpoints policy set --mine --keep-last 5
      chockstone checkpoints policy set --user ann --ttl 2w --quota 500GiB
    """
    with reporting(as_json=as_json, debug=debug):
        from chockstone.cli.remote.client import connect
        from chockstone.cli.remote.policies import preview_policy, set_policy

        rules = read_rules(keep_last=keep_last, keep_every=keep_every, keep_best=keep_best, ttl=ttl, pin=pin)
        if quota is not None:
            rules["quota_bytes"] = parsed(parse_size, quota, "--quota")
        if not rules:
            raise typer.BadParameter("name a rule, such as --keep-last 3; `policy remove` takes a policy away")
        scope = _scope(run, user, everyone, mine)
        carry_out = preview_policy if dry_run else set_policy
        carry_out(connect(server, key), scope, rules, as_json=as_json)


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
    """Take a policy away; the next wider one applies.

    \b
    Example:
      chockstone checkpoints policy remove --run RUN --dry-run
    """
    with reporting(as_json=as_json, debug=debug):
        from chockstone.cli.remote.client import connect
        from chockstone.cli.remote.policies import preview_policy, remove_policy

        scope = _scope(run, user, everyone, mine)
        if dry_run:
            preview_policy(connect(server, key), scope, None, as_json=as_json)
        else:
            remove_policy(connect(server, key), scope, as_json=as_json)


def read_rules(
    *, keep_last: int | None, keep_every: int | None, keep_best: str | None, ttl: str | None, pin: list[str] | None
) -> dict[str, Any]:  # Any: JSON
    """What the options say about retention, as a server takes it; empty where they say nothing."""
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
    """What the options say about retention, as the library takes it."""
    from chockstone.checkpoints import Best, Retention

    return Retention(
        keep_last=keep_last,
        keep_every=keep_every,
        keep_best=None if keep_best is None else Best(*parsed(parse_best, keep_best, "--keep-best")),
        pinned=frozenset(pin or ()),
        ttl_seconds=None if ttl is None else parsed(parse_duration, ttl, "--ttl"),
    )


def _scope(run: str | None, user: str | None, everyone: bool, mine: bool = False) -> str:
    from chockstone.cli.remote.addresses import find_run

    if [run is not None, user is not None, everyone, mine].count(True) != 1:
        raise typer.BadParameter("say whose policy: --run RUN, --mine, --user USER or --global, one of them")
    if run is not None:
        return f"run:{find_run(run)}"
    if mine:
        return "mine"
    return "global" if everyone else f"user:{user}"
