"""Commands that delete checkpoints: ``rm`` by name, run, kind and age, ``gc`` by rules."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from chockstone.cli.commands.checkpoints.arguments import KindOption, Prefix, RunOption, parse_paths, refuse
from chockstone.cli.commands.checkpoints.policy import read_retention, read_rules
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
from chockstone.cli.output.reporting import finish, reporting


def rm(
    words: Annotated[list[str] | None, typer.Argument(metavar="STORE NAME|PATH", help="As `ls` shows them.")] = None,
    run: RunOption = None,
    kind: KindOption = None,
    older_than: Annotated[
        str | None, typer.Option(metavar="AGE", help="Of a server, only what is older: 12h, 7d, 2w.")
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Of a server, what all your runs have, of any age, if nothing else limits it.")
    ] = False,
    yes: Yes = False,
    dry_run: DryRun = False,
    server: ServerUrl = SERVER,
    key: Key = KEY,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Remove checkpoints by name, or by run, kind and age.

    Without names, --run says of which run, or --older-than from which age on; to remove of all your runs,
    whatever the age, takes --all. The question that is asked names the published ones.

    A store's are gone for good, a server's too unless it has a trash: then `undelete` takes them out of it
    again for a while. Pinned ones go: naming one is enough. Like rm(1), a name that is not there is reported and
    makes the exit code 1, and the others are removed. Saying no when asked removes nothing and exits with 0.

    A checkpoint of a run of attempts (`Resume`, Flyte) that another attempt refers to is not removed, unless
    that one is named, too: the message names the attempt, and the exit code is 1.

    \b
    Examples:
      chockstone checkpoints rm tinker://RUN/weights/step-100 tinker://RUN/sampler_weights/step-100
      chockstone checkpoints rm --run RUN --kind weights --older-than 7d --dry-run
      chockstone checkpoints rm /data/checkpoints run-1/step-00000100 run-1/step-00000200
    """
    with reporting(as_json=as_json, debug=debug):
        from chockstone.cli.output.formatting import parse_duration
        from chockstone.cli.remote.addresses import find_run, is_address

        now = datetime.now(UTC)
        chosen = run or kind or older_than or every
        if not words and not (run or older_than or every):
            raise typer.BadParameter(
                "say which: paths, a store and names, --run or --older-than; --all takes what all your runs have"
            )
        if not words or is_address(words[0]):
            from chockstone.cli.remote.client import connect
            from chockstone.cli.remote.removal import RemovalFilter, remove_chosen, remove_paths

            asked = connect(server, key)
            if words:
                refuse(chosen, "--run, --kind, --older-than and --all", "choose among all; leave them out or name none")
                paths = parse_paths(*words)
                finish(remove_paths(asked, paths, now=now, yes=yes, dry_run=dry_run, as_json=as_json))
                return
            age = None if older_than is None else parsed(parse_duration, older_than, "--older-than")
            choice = RemovalFilter(run and find_run(run), kind, age)
            finish(remove_chosen(asked, choice, now=now, yes=yes, dry_run=dry_run, as_json=as_json))
            return
        from chockstone.cli.local.removal import remove_names
        from chockstone.cli.local.targets import find_store

        refuse(chosen, "--run, --kind, --older-than and --all", "belong to a server; `gc` removes by rule from a store")
        found = find_store(words[0])
        if not words[1:]:
            raise typer.BadParameter(f"name the checkpoints of {words[0]!r} to remove, as `ls` shows them")
        finish(remove_names(found, words[1:], now=now, yes=yes, dry_run=dry_run, as_json=as_json))


def gc(
    store: Annotated[
        str | None, typer.Argument(metavar="STORE", help="A directory, file://… or s3://bucket/prefix.")
    ] = None,
    prefix: Prefix = "",
    run: RunOption = None,
    keep_last: Annotated[int | None, typer.Option(metavar="K", min=1, help="Keep the newest K.")] = None,
    keep_every: Annotated[int | None, typer.Option(metavar="N", min=1, help="Keep steps divisible by N.")] = None,
    keep_best: Annotated[
        str | None, typer.Option(metavar="METRIC[:min|max[:COUNT]]", help="Keep the best by a saved metric.")
    ] = None,
    ttl: Annotated[str | None, typer.Option(metavar="AGE", help="Remove what is older: 90s, 15m, 12h, 7d, 2w.")] = None,
    pin: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Keep this one; may be repeated.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be removed, and why.")] = False,
    sweep_partials: Annotated[
        bool, typer.Option("--sweep-partials", help="Also remove what interrupted saves left in the store.")
    ] = False,
    remove_damaged: Annotated[
        bool, typer.Option("--remove-damaged", help="Also remove archives found damaged, if a good one remains.")
    ] = False,
    server: ServerUrl = SERVER,
    key: Key = KEY,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Remove checkpoints that no rule keeps.

    Asks nothing: try --dry-run first. A checkpoint stays if any --keep rule wants it; with no such rule
    only expired ones go. Pinned ones and the newest good one always stay; the newest is read in full
    first, so that "good" is certain. Of a run of attempts (`Resume`, Flyte), a superseded checkpoint never
    counts as good, and what another attempt refers to stays.

    Without a STORE a server does now what it does by itself every minute, by its own rules: `policy` shows
    and sets them. With rules and --dry-run it says what would go if your policy, or that of --run, were
    these rules.

    \b
    Examples:
      chockstone checkpoints gc --dry-run
      chockstone checkpoints gc --run RUN --keep-last 3 --dry-run
      chockstone checkpoints gc /data/checkpoints --prefix run-1 --keep-last 3 --keep-best loss:min:2 --dry-run
      chockstone checkpoints gc s3://bucket/runs --ttl 7d --sweep-partials
    """
    with reporting(as_json=as_json, debug=debug):
        if store is None:
            refuse(
                prefix or sweep_partials or remove_damaged,
                "--prefix, --sweep-partials and --remove-damaged",
                "are for a store; a server sees to its own, and `chockstone doctor` helps",
            )
            rules = read_rules(keep_last=keep_last, keep_every=keep_every, keep_best=keep_best, ttl=ttl, pin=pin)
            _sweep_server(server, key, run=run, rules=rules, dry_run=dry_run, as_json=as_json)
            return
        from chockstone.cli.local.collection import CollectionTask, collect_garbage
        from chockstone.cli.local.targets import find_store

        refuse(run, "--run", "belongs to a server; --prefix chooses in a store")
        policy = read_retention(keep_last=keep_last, keep_every=keep_every, keep_best=keep_best, ttl=ttl, pin=pin)
        task = CollectionTask(prefix, dry_run=dry_run, sweep_partials=sweep_partials, remove_damaged=remove_damaged)
        finish(collect_garbage(find_store(store), policy, task, now=datetime.now(UTC), as_json=as_json))


def _sweep_server(url: str, key: str, *, run: str | None, rules: dict[str, Any], dry_run: bool, as_json: bool) -> None:
    """Sweep by the server's own rules, or preview what ``rules`` would remove."""
    from chockstone.cli.remote.addresses import find_run
    from chockstone.cli.remote.client import connect
    from chockstone.cli.remote.policies import preview_policy, sweep_served

    if rules and not dry_run:
        raise typer.BadParameter(
            "a server keeps by rules of its own: `policy set` sets them, and with --dry-run this shows what such rules "
            "would remove"
        )
    run_id = run and find_run(run)
    if rules:
        preview_policy(connect(url, key), f"run:{run_id}" if run_id else "mine", rules, as_json=as_json)
    else:
        sweep_served(connect(url, key), run_id, dry_run=dry_run, as_json=as_json)
