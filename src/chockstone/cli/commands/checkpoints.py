"""``chockstone checkpoints``: look at, check, take out and remove what the checkpoint library saved.

Here are the words and the help; what each command does is in the file named after what it prints, and
what a server is asked to do in its namesake in ``served``.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from chockstone.cli.commands import sharing
from chockstone.cli.commands.options import (
    KEY,
    SERVER,
    AsJson,
    Debug,
    DryRun,
    Key,
    PathWord,
    ServerUrl,
    Yes,
    parsed,
)
from chockstone.cli.commands.policy import commands as policy_commands
from chockstone.cli.commands.policy import read_rules
from chockstone.cli.commands.trash import commands as trash_commands
from chockstone.cli.commands.trash import restore
from chockstone.cli.output.reporting import EXIT_CODES, finish, reporting

if TYPE_CHECKING:
    from chockstone.wire.paths import TinkerPath

Kind = Literal["weights", "sampler_weights", "external_weights"]

commands = typer.Typer(no_args_is_help=True, rich_markup_mode=None, epilog=EXIT_CODES)

Prefix = Annotated[str, typer.Option(metavar="PREFIX", help="Of a store, only names below this, such as a run's.")]
RunOption = Annotated[
    str | None, typer.Option("--run", metavar="RUN", help="Of a server, only this run's, as `runs ls` shows it.")
]
KindOption = Annotated[Kind | None, typer.Option("--kind", help="Of a server, only this kind.")]


@commands.callback()
def checkpoints() -> None:
    """Look at, check, take out, share and remove saved checkpoints.

    Without a STORE, or with a PATH tinker://RUN/KIND/NAME in its place, a server is asked: the one that
    --server or TINKER_BASE_URL names, with the key of --key or TINKER_API_KEY.

    A STORE is a directory or a URL; NAME is what `ls` shows of it. Where one checkpoint is wanted, the
    path of a single archive FILE.tar may stand for STORE and NAME. Stores need no server; what belongs
    to a server is changed through it, and `chockstone doctor` looks at both.

    \b
    Examples:
      chockstone checkpoints ls
      chockstone checkpoints export tinker://RUN/sampler_weights/step-100 ./adapter
      chockstone checkpoints rm --run RUN --kind weights --older-than 7d --dry-run
      chockstone checkpoints ls /data/checkpoints
      chockstone checkpoints verify s3://bucket/runs --prefix run-1
      chockstone checkpoints show ./step-00000100.tar
    """


@commands.command(epilog=EXIT_CODES)
def ls(
    store: Annotated[
        str | None,
        typer.Argument(metavar="STORE", help="A directory, file://…, s3://bucket/prefix; or tinker://RUN."),
    ] = None,
    prefix: Prefix = "",
    run: RunOption = None,
    kind: KindOption = None,
    server: ServerUrl = SERVER,
    key: Key = KEY,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """List checkpoints with size, age and state.

    Of a server: all of yours, or of one run, newest first. Of a store: the oldest first, and damaged ones
    before all; only the start and the end of each archive is read, so "good" means complete and committed.
    Use `verify` to check every byte. Damaged ones stand there with the reason and do not change the exit code.

    \b
    Examples:
      chockstone checkpoints ls --run RUN
      chockstone checkpoints ls /data/checkpoints --prefix run-1
    """
    with reporting(as_json=as_json, debug=debug):
        from chockstone.cli.remote.addresses import find_run, is_address

        if store is None or is_address(store):
            from chockstone.cli.remote.client import connect
            from chockstone.cli.remote.inventory import list_served

            _refuse(prefix, "--prefix", "belongs to a store; --run chooses on a server")
            run_id = _one_run(store, run)
            list_served(connect(server, key), run_id and find_run(run_id), kind, now=datetime.now(UTC), as_json=as_json)
            return
        from chockstone.cli.local.inventory import list_store
        from chockstone.cli.local.targets import find_store

        _refuse(run or kind, "--run or --kind", "belongs to a server; --prefix chooses in a store")
        list_store(find_store(store), prefix, now=datetime.now(UTC), as_json=as_json)


@commands.command(epilog=EXIT_CODES)
def show(
    where: Annotated[str, typer.Argument(metavar="STORE|FILE|PATH", help="A store, an archive file, or tinker://….")],
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="The checkpoint, when a store is given.")] = None,
    values: Annotated[bool, typer.Option("--values", help="Print every value of the state, and each whole.")] = False,
    server: ServerUrl = SERVER,
    key: Key = KEY,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Show one checkpoint: facts, members, tensors, values.

    Of a server its facts: base model, rank, size, lifetime, metadata. Of a store or a file also what is in
    it; offsets count from the start of the archive, and only blocks that hold headers and values are read.

    \b
    Examples:
      chockstone checkpoints show tinker://RUN/weights/latest
      chockstone checkpoints show /data/checkpoints run-1/step-00000100
      chockstone checkpoints show ./step-00000100.tar --values
    """
    with reporting(as_json=as_json, debug=debug):
        from chockstone.cli.remote.addresses import is_address

        if is_address(where):
            from chockstone.cli.remote.client import connect
            from chockstone.cli.remote.details import show_served

            _refuse(name, repr(name), "is too much: a tinker:// path names one checkpoint")
            [path] = _paths(where)
            finish(show_served(connect(server, key), path, now=datetime.now(UTC), as_json=as_json))
            return
        from chockstone.cli.local.listing import list_archive
        from chockstone.cli.local.targets import find_one
        from chockstone.cli.output.reporting import FOUND

        target = find_one(where, name)
        with target.open() as archive:
            damage = list_archive(target.name, archive, now=datetime.now(UTC), as_json=as_json, all_values=values)
        finish(FOUND if damage else 0)


@commands.command(epilog=EXIT_CODES)
def verify(
    where: Annotated[
        str | None, typer.Argument(metavar="STORE|FILE|PATH", help="A store, an archive file, or tinker://….")
    ] = None,
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME|FILE|PATH", help="Checkpoints of the store, or more.")
    ] = None,
    prefix: Prefix = "",
    run: RunOption = None,
    policy: Annotated[
        Literal["full", "sampled"], typer.Option(help="Check every block, or one in sixteen and the last.")
    ] = "full",
    server: ServerUrl = SERVER,
    key: Key = KEY,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Check checkpoints against their digests.

    All of the store, of the server or of its run when none is named. A server reads them where they are,
    and from then on lists what it found damaged as damaged. Prints a verdict for each and exits with 1
    when one of them is not good.

    \b
    Examples:
      chockstone checkpoints verify --run RUN
      chockstone checkpoints verify tinker://RUN/weights/step-100 tinker://RUN/weights/step-200
      chockstone checkpoints verify /data/checkpoints
      chockstone checkpoints verify s3://bucket/runs run-1/step-00000100 --policy sampled
      chockstone checkpoints verify ./*.tar
    """
    with reporting(as_json=as_json, debug=debug):
        from chockstone.cli.remote.addresses import find_path, find_run, is_address

        named = names or []
        if where is None or is_address(where):
            from chockstone.cli.remote.checkpoint import list_checkpoints
            from chockstone.cli.remote.client import connect
            from chockstone.cli.remote.verdicts import verify_served

            _refuse(prefix, "--prefix", "belongs to a store; --run chooses on a server")
            asked = connect(server, key)
            if where is None:
                listed = list_checkpoints(asked, run and find_run(run))
                paths = [find_path(each.path) for each in listed]
            else:
                _refuse(run, "--run", "chooses among all; leave it out or name none")
                paths = _paths(where, *named)
            finish(verify_served(asked, paths, as_json=as_json, were_listed=where is None))
            return
        from chockstone.cli.local.targets import find_archive, find_checkpoint, find_store, is_archive, list_entries
        from chockstone.cli.local.verdicts import verify_targets

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
    where: Annotated[str, typer.Argument(metavar="STORE|FILE|PATH", help="A store, an archive file, or tinker://….")],
    name: Annotated[str, typer.Argument(metavar="NAME|DIRECTORY", help="The checkpoint, when a store is given.")],
    directory: Annotated[
        str | None, typer.Argument(metavar="DIRECTORY", help="Where to; will be made and must not exist. Always last.")
    ] = None,
    member: Annotated[
        list[str] | None, typer.Option(metavar="NAME|PATTERN", help="Only these members; may be repeated.")
    ] = None,
    merge: Annotated[
        bool, typer.Option("--merge", help="Fold the adapter into its base model and write that.")
    ] = False,
    base: Annotated[
        str | None, typer.Option(metavar="DIRECTORY", help="The base model to --merge into, from Hugging Face's files.")
    ] = None,
    server: ServerUrl = SERVER,
    key: Key = KEY,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Extract a checkpoint into a new directory, verified.

    The directory appears whole and durable at the end, or not at all. From a server the archive is
    downloaded first, beside the directory; interrupted, the same command goes on where it ended. `tar xf`
    works on an archive, too, but checks nothing.

    \b
    Examples:
      chockstone checkpoints export tinker://RUN/sampler_weights/step-100 ./adapter
      chockstone checkpoints export tinker://RUN/sampler_weights/step-100 ./merged --merge --base ./models/qwen3-8b
      chockstone checkpoints export /data/checkpoints run-1/step-00000100 ./adapter --member '*.safetensors'
      chockstone checkpoints export ./step-00000100.tar ./unpacked
    """
    with reporting(as_json=as_json, debug=debug):
        from chockstone.cli.remote.addresses import is_address

        if merge != (base is not None):
            raise typer.BadParameter("--merge and --base DIRECTORY are needed together", param_hint="--merge")
        _refuse(merge and member, "--member", "chooses files of a checkpoint; a merged model is whole")
        if is_address(where):
            from chockstone.cli.remote.client import connect
            from chockstone.cli.remote.extraction import export_served

            _refuse(directory, repr(directory), "is too much: write the path and the directory")
            [path] = _paths(where)
            export_served(connect(server, key), path, name, members=member or [], base=base, as_json=as_json)
            return
        from chockstone.cli.local.extraction import export_target, merge_target
        from chockstone.cli.local.targets import find_one

        target = find_one(where, None if directory is None else name)
        if base is not None:
            merge_target(target, directory or name, base=base, as_json=as_json)
        else:
            export_target(target, directory or name, members=member or [], as_json=as_json)


@commands.command(epilog=EXIT_CODES)
def download(
    path: PathWord,
    file: Annotated[str, typer.Argument(metavar="FILE", help="Where to; must not exist.")],
    server: ServerUrl = SERVER,
    key: Key = KEY,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Fetch a checkpoint of a server as one archive, verified.

    FILE is there when all of it has arrived and every digest is right. Interrupted, the same command goes
    on where it ended. `show`, `verify`, `export` and `diff` read the file.

    \b
    Example:
      chockstone checkpoints download tinker://RUN/weights/step-100 ./step-100.tar
    """
    with reporting(as_json=as_json, debug=debug):
        from chockstone.cli.remote.addresses import find_path
        from chockstone.cli.remote.client import connect
        from chockstone.cli.remote.extraction import download_served

        download_served(connect(server, key), find_path(path), file, as_json=as_json)


@commands.command(epilog=EXIT_CODES)
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

    A store's are gone for good, a server's too unless it has a trash: then `restore` brings them back for
    a while. Pinned ones go: naming one is enough. Like rm(1), a name that is not there is reported and
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
                _refuse(
                    chosen, "--run, --kind, --older-than and --all", "choose among all; leave them out or name none"
                )
                paths = _paths(*words)
                finish(remove_paths(asked, paths, now=now, yes=yes, dry_run=dry_run, as_json=as_json))
                return
            age = None if older_than is None else parsed(parse_duration, older_than, "--older-than")
            choice = RemovalFilter(run and find_run(run), kind, age)
            finish(remove_chosen(asked, choice, now=now, yes=yes, dry_run=dry_run, as_json=as_json))
            return
        from chockstone.cli.local.removal import remove_names
        from chockstone.cli.local.targets import find_store

        _refuse(
            chosen, "--run, --kind, --older-than and --all", "belong to a server; `gc` removes by rule from a store"
        )
        found = find_store(words[0])
        if not words[1:]:
            raise typer.BadParameter(f"name the checkpoints of {words[0]!r} to remove, as `ls` shows them")
        finish(remove_names(found, words[1:], now=now, yes=yes, dry_run=dry_run, as_json=as_json))


@commands.command(epilog=EXIT_CODES)
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
            from chockstone.cli.remote.addresses import find_run
            from chockstone.cli.remote.client import connect
            from chockstone.cli.remote.policies import sweep_served

            _refuse(
                prefix or sweep_partials or remove_damaged,
                "--prefix, --sweep-partials and --remove-damaged",
                "are for a store; a server sees to its own, and `chockstone doctor` helps",
            )
            rules = read_rules(keep_last=keep_last, keep_every=keep_every, keep_best=keep_best, ttl=ttl, pin=pin)
            run_id = run and find_run(run)
            if rules and not dry_run:
                raise typer.BadParameter(
                    "a server keeps by rules of its own: `policy set` sets them, and with --dry-run this shows what "
                    "such rules would remove"
                )
            if rules:
                from chockstone.cli.remote.policies import preview_policy

                preview_policy(connect(server, key), f"run:{run_id}" if run_id else "mine", rules, as_json=as_json)
                return
            sweep_served(connect(server, key), run_id, dry_run=dry_run, as_json=as_json)
            return
        from chockstone.checkpoints import Best, Retention
        from chockstone.cli.local.collection import CollectionTask, collect_garbage
        from chockstone.cli.local.targets import find_store
        from chockstone.cli.output.formatting import parse_best, parse_duration

        _refuse(run, "--run", "belongs to a server; --prefix chooses in a store")
        policy = Retention(
            keep_last=keep_last,
            keep_every=keep_every,
            keep_best=None if keep_best is None else Best(*parsed(parse_best, keep_best, "--keep-best")),
            pinned=frozenset(pin or ()),
            ttl_seconds=None if ttl is None else parsed(parse_duration, ttl, "--ttl"),
        )
        task = CollectionTask(prefix, dry_run=dry_run, sweep_partials=sweep_partials, remove_damaged=remove_damaged)
        finish(collect_garbage(find_store(store), policy, task, now=datetime.now(UTC), as_json=as_json))


@commands.command(epilog=EXIT_CODES)
def diff(
    where: Annotated[
        str, typer.Argument(metavar="STORE|FILE|PATH", help="A store, or the first archive file or tinker://….")
    ],
    before: Annotated[
        str, typer.Argument(metavar="NAME|FILE|PATH", help="The first checkpoint of the store, or the second file.")
    ],
    after: Annotated[str | None, typer.Argument(metavar="NAME", help="The second checkpoint of the store.")] = None,
    server: ServerUrl = SERVER,
    key: Key = KEY,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Say which tensors, values and files changed.

    Compares what would be restored or extracted; step, time, metrics and metadata are not compared. Exits
    with 0 when both are the same and with 1 when they differ or one is damaged. What a server has is
    downloaded in full first, into the directory for temporary files (TMPDIR), and removed afterwards.

    \b
    Examples:
      chockstone checkpoints diff tinker://RUN/weights/step-100 tinker://RUN/weights/step-200
      chockstone checkpoints diff /data/checkpoints run-1/step-00000100 run-1/step-00000200
      chockstone checkpoints diff ./old.tar s3://bucket/runs/run-1/step-00000100.tar
    """
    with reporting(as_json=as_json, debug=debug):
        from chockstone.cli.remote.addresses import is_address

        if is_address(where) or is_address(before):
            from chockstone.cli.remote.client import connect
            from chockstone.cli.remote.differences import compare_served

            _refuse(after, repr(after), "is too much: write two checkpoints, each by its path")
            finish(compare_served(connect(server, key), where, before, as_json=as_json))
            return
        from chockstone.cli.local.differences import compare_targets
        from chockstone.cli.local.targets import find_archive, find_checkpoint, find_store

        if after is None:
            pair = find_archive(where), find_archive(before)
        else:
            store = find_store(where)
            pair = find_checkpoint(store, before), find_checkpoint(store, after)
        finish(compare_targets(*pair, as_json=as_json))


for command in (sharing.publish, sharing.unpublish, sharing.ttl, sharing.copy, restore):
    commands.command(epilog=EXIT_CODES)(command)
commands.add_typer(trash_commands, name="trash")
commands.add_typer(policy_commands, name="policy")


def _refuse(given: object, option: str, why: str) -> None:
    if given:
        raise typer.BadParameter(f"{option} {why}")


def _one_run(word: str | None, run: str | None) -> str | None:
    if word is not None and run is not None:
        raise typer.BadParameter("the run is given twice; leave --run out", param_hint="--run")
    return word or run


def _paths(*words: str) -> list[TinkerPath]:
    from chockstone.cli.remote.addresses import find_path

    return [find_path(word) for word in words]
