"""Commands that read checkpoints: ``ls``, ``show``, ``verify`` and ``diff``."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Literal

import typer

from chockstone.cli.commands.checkpoints.arguments import KindOption, Prefix, RunOption, parse_paths, refuse
from chockstone.cli.commands.options import (
    KEY,
    SERVER,
    AsJson,
    Debug,
    Key,
    ServerUrl,
)
from chockstone.cli.output.reporting import finish, reporting


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

            refuse(prefix, "--prefix", "belongs to a store; --run chooses on a server")
            run_id = _one_run(store, run)
            list_served(connect(server, key), run_id and find_run(run_id), kind, now=datetime.now(UTC), as_json=as_json)
            return
        from chockstone.cli.local.inventory import list_store
        from chockstone.cli.local.targets import find_store

        refuse(run or kind, "--run or --kind", "belongs to a server; --prefix chooses in a store")
        list_store(find_store(store), prefix, now=datetime.now(UTC), as_json=as_json)


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
            from chockstone.cli.remote.inventory import show_served

            refuse(name, repr(name), "is too much: a tinker:// path names one checkpoint")
            [path] = parse_paths(where)
            finish(show_served(connect(server, key), path, now=datetime.now(UTC), as_json=as_json))
            return
        from chockstone.cli.local.listing import list_archive
        from chockstone.cli.local.targets import find_one
        from chockstone.cli.output.reporting import FOUND

        target = find_one(where, name)
        with target.open() as archive:
            damage = list_archive(target.name, archive, now=datetime.now(UTC), as_json=as_json, all_values=values)
        finish(FOUND if damage else 0)


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

            refuse(prefix, "--prefix", "belongs to a store; --run chooses on a server")
            asked = connect(server, key)
            if where is None:
                listed = list_checkpoints(asked, run and find_run(run))
                paths = [find_path(each.path) for each in listed]
            else:
                refuse(run, "--run", "chooses among all; leave it out or name none")
                paths = parse_paths(where, *named)
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
            from chockstone.cli.remote.archives import compare_served
            from chockstone.cli.remote.client import connect

            refuse(after, repr(after), "is too much: write two checkpoints, each by its path")
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


def _one_run(word: str | None, run: str | None) -> str | None:
    if word is not None and run is not None:
        raise typer.BadParameter("the run is given twice; leave --run out", param_hint="--run")
    return word or run
