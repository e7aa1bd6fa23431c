"""``chockstone checkpoints``: look at, check, take out and remove what the checkpoint library saved.

Here are the words and the help; what each command does is in the file named after what it prints.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated, Literal, TypeVar

import typer

from chockstone.cli.reporting import EXIT_CODES, finish, reporting

T = TypeVar("T")

commands = typer.Typer(no_args_is_help=True, rich_markup_mode=None, epilog=EXIT_CODES)

StoreWord = Annotated[str, typer.Argument(metavar="STORE", help="A directory, file://… or s3://bucket/prefix.")]
Prefix = Annotated[str, typer.Option(metavar="PREFIX", help="Only names below this one, such as a run's.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document; sizes in bytes, times in ISO form.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


@commands.callback()
def checkpoints() -> None:
    """Look at, check, take out and remove saved checkpoints.

    A STORE is a directory or a URL; NAME is what `ls` shows. Where one checkpoint is wanted, the path
    of a single archive FILE.tar may stand for STORE and NAME.

    \b
    Examples:
      chockstone checkpoints ls /data/checkpoints
      chockstone checkpoints verify s3://bucket/runs --prefix run-1
      chockstone checkpoints show ./step-00000100.tar
    """


@commands.command(epilog=EXIT_CODES)
def ls(store: StoreWord, prefix: Prefix = "", as_json: AsJson = False, debug: Debug = False) -> None:
    """List checkpoints with step, size, age and state.

    Reads only the start and the end of each archive: "good" means complete and committed. Use `verify`
    to check every byte. The oldest comes first; damaged ones stand before all, with the reason,
    and do not change the exit code.

    \b
    Example:
      chockstone checkpoints ls /data/checkpoints --prefix run-1
    """
    with reporting(as_json=as_json, debug=debug):
        from chockstone.cli.inventory import list_store
        from chockstone.cli.targets import find_store

        list_store(find_store(store), prefix, now=datetime.now(UTC), as_json=as_json)


@commands.command(epilog=EXIT_CODES)
def show(
    where: Annotated[str, typer.Argument(metavar="STORE|FILE", help="A store, or one archive file.")],
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="The checkpoint, when a store is given.")] = None,
    values: Annotated[bool, typer.Option("--values", help="Print every value of the state, and each whole.")] = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Show one checkpoint: facts, members, tensors, values.

    Offsets count from the start of the archive file. Only the blocks that hold headers and values are read.

    \b
    Examples:
      chockstone checkpoints show /data/checkpoints run-1/step-00000100
      chockstone checkpoints show ./step-00000100.tar --values
    """
    with reporting(as_json=as_json, debug=debug):
        from chockstone.cli.listing import list_archive
        from chockstone.cli.reporting import FOUND
        from chockstone.cli.targets import find_one

        target = find_one(where, name)
        with target.open() as archive:
            damage = list_archive(target.name, archive, now=datetime.now(UTC), as_json=as_json, all_values=values)
        finish(FOUND if damage else 0)


@commands.command(epilog=EXIT_CODES)
def verify(
    where: Annotated[str, typer.Argument(metavar="STORE|FILE", help="A store, or an archive file.")],
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME|FILE", help="Checkpoints of the store, or more files.")
    ] = None,
    prefix: Prefix = "",
    policy: Annotated[
        Literal["full", "sampled"], typer.Option(help="Check every block, or one in sixteen and the last.")
    ] = "full",
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Check checkpoints against their digests.

    All of the store when none is named. Prints a verdict for each and exits with 1 when one of them is not good.

    \b
    Examples:
      chockstone checkpoints verify /data/checkpoints
      chockstone checkpoints verify s3://bucket/runs run-1/step-00000100 --policy sampled
      chockstone checkpoints verify ./*.tar
    """
    with reporting(as_json=as_json, debug=debug):
        from chockstone.cli.targets import find_archive, find_checkpoint, find_store, is_archive, list_entries
        from chockstone.cli.verdicts import verify_targets

        named = names or []
        if prefix and (named or is_archive(where)):
            raise typer.BadParameter(
                "a prefix chooses among all of a store; leave it out or name none", param_hint="--prefix"
            )
        if is_archive(where):
            targets = [find_archive(word) for word in (where, *named)]
        else:
            store = find_store(where)
            chosen = named or [entry.name for entry in list_entries(store, prefix)]
            targets = [find_checkpoint(store, name) for name in chosen]
        finish(verify_targets(targets, policy=policy, as_json=as_json, were_listed=not named))


@commands.command(epilog=EXIT_CODES)
def export(
    where: Annotated[str, typer.Argument(metavar="STORE|FILE", help="A store, or one archive file.")],
    name: Annotated[str, typer.Argument(metavar="NAME|DIRECTORY", help="The checkpoint, when a store is given.")],
    directory: Annotated[
        str | None, typer.Argument(metavar="DIRECTORY", help="Where to; will be made and must not exist. Always last.")
    ] = None,
    member: Annotated[
        list[str] | None, typer.Option(metavar="NAME|PATTERN", help="Only these members; may be repeated.")
    ] = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Extract a checkpoint into a new directory, verified.

    The directory appears whole and durable at the end, or not at all. `tar xf` works on an archive, too,
    but checks nothing.

    \b
    Examples:
      chockstone checkpoints export /data/checkpoints run-1/step-00000100 ./adapter --member '*.safetensors'
      chockstone checkpoints export ./step-00000100.tar ./unpacked
    """
    with reporting(as_json=as_json, debug=debug):
        from chockstone.cli.extraction import export_target
        from chockstone.cli.targets import find_one

        target = find_one(where, None if directory is None else name)
        export_target(target, directory or name, members=member or [], as_json=as_json)


@commands.command(epilog=EXIT_CODES)
def rm(
    store: StoreWord,
    names: Annotated[list[str], typer.Argument(metavar="NAME", help="Checkpoints, as `ls` shows them.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask. Needed where nobody can answer.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be removed.")] = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Remove checkpoints by name, for good.

    Pinned ones go, too: naming one is enough. Like rm(1), a name that is not there is reported and makes
    the exit code 1, and the others are removed. Saying no when asked removes nothing and exits with 0.

    \b
    Example:
      chockstone checkpoints rm /data/checkpoints run-1/step-00000100 run-1/step-00000200
    """
    with reporting(as_json=as_json, debug=debug):
        from chockstone.cli.removal import remove_names
        from chockstone.cli.targets import find_store

        found = find_store(store)
        finish(remove_names(found, names, now=datetime.now(UTC), yes=yes, dry_run=dry_run, as_json=as_json))


@commands.command(epilog=EXIT_CODES)
def gc(
    store: StoreWord,
    prefix: Prefix = "",
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
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Remove checkpoints that no rule keeps.

    Asks nothing: try --dry-run first. A checkpoint stays if any --keep rule wants it; with no such rule
    only expired ones go. Pinned ones and the newest good one always stay; the newest is read in full
    first, so that "good" is certain.

    \b
    Examples:
      chockstone checkpoints gc /data/checkpoints --prefix run-1 --keep-last 3 --keep-best loss:min:2 --dry-run
      chockstone checkpoints gc s3://bucket/runs --ttl 7d --sweep-partials
    """
    with reporting(as_json=as_json, debug=debug):
        from chockstone.checkpoints import Best, Retention
        from chockstone.cli.collection import Task, collect_garbage
        from chockstone.cli.targets import find_store
        from chockstone.cli.words import parse_best, parse_duration

        policy = Retention(
            keep_last=keep_last,
            keep_every=keep_every,
            keep_best=None if keep_best is None else Best(*_parsed(parse_best, keep_best, "--keep-best")),
            pinned=frozenset(pin or ()),
            ttl_seconds=None if ttl is None else _parsed(parse_duration, ttl, "--ttl"),
        )
        task = Task(prefix, dry_run=dry_run, sweep_partials=sweep_partials, remove_damaged=remove_damaged)
        finish(collect_garbage(find_store(store), policy, task, now=datetime.now(UTC), as_json=as_json))


@commands.command(epilog=EXIT_CODES)
def diff(
    where: Annotated[str, typer.Argument(metavar="STORE|FILE", help="A store, or the first archive file.")],
    before: Annotated[str, typer.Argument(metavar="NAME|FILE", help="The first checkpoint, or the second file.")],
    after: Annotated[str | None, typer.Argument(metavar="NAME", help="The second checkpoint of the store.")] = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Say which tensors, values and files changed.

    Compares what would be restored or extracted; step, time, metrics and metadata are not compared. Exits
    with 0 when both are the same and with 1 when they differ or one is damaged.

    \b
    Examples:
      chockstone checkpoints diff /data/checkpoints run-1/step-00000100 run-1/step-00000200
      chockstone checkpoints diff ./old.tar s3://bucket/runs/run-1/step-00000100.tar
    """
    with reporting(as_json=as_json, debug=debug):
        from chockstone.cli.differences import compare_targets
        from chockstone.cli.targets import find_archive, find_checkpoint, find_store

        if after is None:
            pair = find_archive(where), find_archive(before)
        else:
            store = find_store(where)
            pair = find_checkpoint(store, before), find_checkpoint(store, after)
        finish(compare_targets(*pair, as_json=as_json))


def _parsed(parse: Callable[[str], T], text: str, option: str) -> T:
    try:
        return parse(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None
