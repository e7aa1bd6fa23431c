"""Commands that delete checkpoints: ``rm`` by name, run, kind and age, ``gc`` by rules."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from chockstone.cli.commands.checkpoints.arguments import KindOption, Prefix, RunOption, refuse
from chockstone.cli.commands.options import (
    KEY,
    SERVER,
    AsJson,
    Debug,
    DryRun,
    Key,
    ServerUrl,
    Yes,
    parsed,
)
from chockstone.cli.commands.policy import KeepBest, KeepEvery, KeepLast, MaxAge, Pins, read_retention, read_rules
from chockstone.cli.output.reporting import finish, reporting


def rm(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="STORE NAME|PATH", help="Store and names, or tinker://… paths, as `ls` prints them."),
    ] = None,
    run: RunOption = None,
    kind: KindOption = None,
    older_than: Annotated[
        str | None, typer.Option(metavar="AGE", help="Limit a server to checkpoints older than AGE: 12h, 7d, 2w.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Delete from all your runs on a server, at any age.")] = False,
    yes: Yes = False,
    dry_run: DryRun = False,
    server: ServerUrl = SERVER,
    key: Key = KEY,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Delete checkpoints by name, or by run, kind and age.

    Without names, --run, --older-than or --all selects checkpoints of a server. The confirmation names
    published checkpoints.

    A store deletes for good. A server with a trash keeps deleted checkpoints for a while, and
    `chockstone trash undelete` brings them back. Pins do not protect a checkpoint that is named here.

    A name that does not exist is reported, the others are deleted, and the exit code is 1. Names must be
    complete; only RUN may be shortened. Answering no deletes nothing and exits with 0.

    In a chain of attempts (`Resume`, Flyte), a checkpoint that another attempt refers to is kept unless that
    attempt's checkpoint is named, too. The message names the attempt, and the exit code is 1.

    \b
    Examples:
      chockstone checkpoints rm tinker://RUN/weights/s1 tinker://RUN/weights/s2
      chockstone checkpoints rm --run RUN --kind weights --older-than 7d --dry-run
      chockstone checkpoints rm /data/checkpoints run-1/s100 run-1/s200
    """
    with reporting(as_json=as_json, debug=debug):
        from chockstone.cli.output.formatting import parse_duration
        from chockstone.cli.remote.addresses import find_paths, find_run, is_address

        now = datetime.now(UTC)
        chosen = run or kind or older_than or every
        if not words and not (run or older_than or every):
            raise typer.BadParameter(
                "name the checkpoints: paths, a store and names, --run or --older-than; --all selects all your runs"
            )
        if not words or is_address(words[0]):
            from chockstone.cli.remote.client import connect
            from chockstone.cli.remote.removal import RemovalFilter, remove_chosen, remove_paths

            asked = connect(server, key)
            if words:
                refuse(
                    chosen,
                    "--run, --kind, --older-than and --all",
                    "select checkpoints; leave them out, or leave the paths out",
                )
                paths = find_paths(asked, words)
                finish(remove_paths(asked, paths, now=now, yes=yes, dry_run=dry_run, as_json=as_json))
                return
            age = None if older_than is None else parsed(parse_duration, older_than, "--older-than")
            choice = RemovalFilter(None if run is None else find_run(asked, run), kind, age)
            finish(remove_chosen(asked, choice, now=now, yes=yes, dry_run=dry_run, as_json=as_json))
            return
        from chockstone.cli.local.removal import remove_names
        from chockstone.cli.local.targets import find_store

        refuse(chosen, "--run, --kind, --older-than and --all", "are for a server; `gc` deletes from a store by rules")
        found = find_store(words[0])
        if not words[1:]:
            raise typer.BadParameter(f"name the checkpoints of {words[0]!r} to delete, as `ls` prints them")
        finish(remove_names(found, words[1:], now=now, yes=yes, dry_run=dry_run, as_json=as_json))


def gc(
    store: Annotated[
        str | None, typer.Argument(metavar="STORE", help="Directory, file://… or s3://bucket/prefix.")
    ] = None,
    prefix: Prefix = "",
    run: RunOption = None,
    keep_last: KeepLast = None,
    keep_every: KeepEvery = None,
    keep_best: KeepBest = None,
    ttl: MaxAge = None,
    pin: Pins = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List the deletions with their reasons, and delete nothing.")
    ] = False,
    sweep_partials: Annotated[
        bool, typer.Option("--sweep-partials", help="Delete unfinished writes of interrupted saves, too.")
    ] = False,
    remove_damaged: Annotated[
        bool, typer.Option("--remove-damaged", help="Delete damaged archives, too, if a good one remains.")
    ] = False,
    server: ServerUrl = SERVER,
    key: Key = KEY,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Delete checkpoints that no retention rule keeps.

    There is no confirmation: run it with --dry-run first. A checkpoint stays if any --keep rule keeps it;
    without --keep rules only expired ones are deleted. Pinned checkpoints and the newest good one always stay.
    The newest one is read in full first. In a chain of attempts (`Resume`, Flyte), a superseded checkpoint
    never counts as good, and a checkpoint that another attempt refers to stays.

    Without STORE, the server runs its next sweep now, by its own rules: `chockstone policy` shows and sets
    them. With rules and --dry-run, the server lists the deletions that these rules would cause as your
    policy, or as the policy of --run.

    \b
    Examples:
      chockstone checkpoints gc --dry-run
      chockstone checkpoints gc --run RUN --keep-last 3 --dry-run
      chockstone checkpoints gc /data/checkpoints --keep-last 3 --dry-run
      chockstone checkpoints gc s3://bucket/runs --ttl 7d --sweep-partials
    """
    with reporting(as_json=as_json, debug=debug):
        if store is None:
            refuse(
                prefix or sweep_partials or remove_damaged,
                "--prefix, --sweep-partials and --remove-damaged",
                "are for a store; `chockstone doctor --fix` repairs the store of a server",
            )
            rules = read_rules(keep_last=keep_last, keep_every=keep_every, keep_best=keep_best, ttl=ttl, pin=pin)
            _sweep_server(server, key, run=run, rules=rules, dry_run=dry_run, as_json=as_json)
            return
        from chockstone.cli.local.collection import CollectionTask, collect_garbage
        from chockstone.cli.local.targets import find_store

        refuse(run, "--run", "is for a server; --prefix limits a store")
        policy = read_retention(keep_last=keep_last, keep_every=keep_every, keep_best=keep_best, ttl=ttl, pin=pin)
        task = CollectionTask(prefix, dry_run=dry_run, sweep_partials=sweep_partials, remove_damaged=remove_damaged)
        finish(collect_garbage(find_store(store), policy, task, now=datetime.now(UTC), as_json=as_json))


def _sweep_server(url: str, key: str, *, run: str | None, rules: dict[str, Any], dry_run: bool, as_json: bool) -> None:
    """Sweep by the server's own rules, or preview the deletions of ``rules``."""
    from chockstone.cli.remote.addresses import find_run
    from chockstone.cli.remote.client import connect
    from chockstone.cli.remote.policies import preview_policy, sweep_served

    if rules and not dry_run:
        raise typer.BadParameter(
            "a server applies its own rules: `chockstone policy set` sets them. With --dry-run, this command lists the "
            "deletions that your rules would cause"
        )
    asked = connect(url, key)
    run_id = None if run is None else find_run(asked, run)
    if rules:
        preview_policy(asked, f"run:{run_id}" if run_id else "mine", rules, as_json=as_json)
    else:
        sweep_served(asked, run_id, dry_run=dry_run, as_json=as_json)
