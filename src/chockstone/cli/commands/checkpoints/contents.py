"""Commands that read checkpoints: ``ls``, ``show``, ``verify`` and ``diff``."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Literal

import typer

from chockstone.cli.commands.checkpoints.arguments import KindOption, Prefix, RunOption, refuse
from chockstone.cli.commands.options import (
    KEY,
    SERVER,
    AsJson,
    Debug,
    Key,
    ServerUrl,
)
from chockstone.cli.output.exit_codes import ExitCode
from chockstone.cli.output.reporting import finish, reporting


def ls(
    store: Annotated[
        str | None,
        typer.Argument(metavar="STORE", help="Directory, file://…, s3://bucket/prefix, or tinker://RUN."),
    ] = None,
    prefix: Prefix = "",
    run: RunOption = None,
    kind: KindOption = None,
    base_model: Annotated[
        str | None, typer.Option("--base-model", metavar="NAME", help="Limit a server to checkpoints of a base model.")
    ] = None,
    server: ServerUrl = SERVER,
    key: Key = KEY,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """List checkpoints with size, age and state.

    Without STORE: your checkpoints on the server, newest first. With STORE: damaged checkpoints first, then
    the oldest. The command reads only the start and the end of each archive, so the state "ok" means complete
    and committed; `verify` checks every byte. A damaged checkpoint is listed with the reason and does not
    change the exit code.

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

            refuse(prefix, "--prefix", "is for a store; --run limits a server")
            word, asked = _one_run(store, run), connect(server, key)
            run_id = None if word is None else find_run(asked, word)
            list_served(asked, run_id, kind, now=datetime.now(UTC), as_json=as_json, base_model=base_model)
            return
        from chockstone.cli.local.inventory import list_store
        from chockstone.cli.local.targets import find_store

        refuse(run or kind or base_model, "--run, --kind or --base-model", "is for a server; --prefix limits a store")
        list_store(find_store(store), prefix, now=datetime.now(UTC), as_json=as_json)


def show(
    where: Annotated[str, typer.Argument(metavar="STORE|FILE|PATH", help="Store, archive file, or tinker://… path.")],
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Name of the checkpoint in STORE.")] = None,
    values: Annotated[bool, typer.Option("--values", help="Print all values of the state in full.")] = False,
    server: ServerUrl = SERVER,
    key: Key = KEY,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Show one checkpoint: facts, members, tensors and values.

    For a server: base model, rank, size, expiry and metadata. For a store or a file: also the members,
    tensors and values. Offsets count from the start of the archive. The command reads only the blocks that
    hold headers and values.

    \b
    Examples:
      chockstone checkpoints show tinker://RUN/weights/latest
      chockstone checkpoints show /data/checkpoints run-1/step-00000100
      chockstone checkpoints show ./step-00000100.tar --values
    """
    with reporting(as_json=as_json, debug=debug):
        from chockstone.cli.remote.addresses import find_readable, is_address

        if is_address(where):
            from chockstone.cli.remote.client import connect
            from chockstone.cli.remote.inventory import show_served

            refuse(name, repr(name), "is one argument too many: a tinker:// path names one checkpoint")
            asked = connect(server, key)
            path = find_readable(asked, where)
            finish(show_served(asked, path, now=datetime.now(UTC), as_json=as_json))
            return
        from chockstone.cli.local.listing import list_archive
        from chockstone.cli.local.targets import find_one

        target = find_one(where, name)
        with target.open() as archive:
            damage = list_archive(target.name, archive, now=datetime.now(UTC), as_json=as_json, all_values=values)
        finish(ExitCode.FAILED if damage else ExitCode.OK)


def verify(
    where: Annotated[
        str | None, typer.Argument(metavar="STORE|FILE|PATH", help="Store, archive file, or tinker://… path.")
    ] = None,
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME|FILE|PATH", help="Names of checkpoints in STORE, or more files or paths."),
    ] = None,
    prefix: Prefix = "",
    run: RunOption = None,
    policy: Annotated[
        Literal["full", "sampled"],
        typer.Option(help="Blocks to check: full is all, sampled is every 16th and the last."),
    ] = "full",
    server: ServerUrl = SERVER,
    key: Key = KEY,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Verify checkpoints against their digests.

    Without names, verifies all checkpoints of the store, of the server, or of --run. A server reads the
    archives itself, and marks the damaged ones. Prints one line per checkpoint. Exits with 1 if a
    checkpoint is damaged or missing, and if there is no checkpoint to verify.

    \b
    Examples:
      chockstone checkpoints verify --run RUN
      chockstone checkpoints verify tinker://RUN/weights/s100
      chockstone checkpoints verify /data/checkpoints
      chockstone checkpoints verify s3://bucket/runs run-1/s100 --policy sampled
      chockstone checkpoints verify ./*.tar
    """
    with reporting(as_json=as_json, debug=debug):
        from chockstone.cli.remote.addresses import find_readable, find_run, is_address, parse_path

        named = names or []
        if where is None or is_address(where):
            from chockstone.cli.remote.checkpoint import list_checkpoints
            from chockstone.cli.remote.client import connect
            from chockstone.cli.remote.verdicts import verify_served

            refuse(prefix, "--prefix", "is for a store; --run limits a server")
            asked = connect(server, key)
            place = asked.url
            if where is None:
                run_id = None if run is None else find_run(asked, run)
                place = asked.url if run_id is None else f"run {run_id}"
                paths = [parse_path(each.path) for each in list_checkpoints(asked, run_id)]
            else:
                refuse(run, "--run", "selects all checkpoints of a run; leave it out, or leave the paths out")
                for word in named:
                    parse_path(word)  # before the server is asked
                paths = [find_readable(asked, word) for word in (where, *named)]
            finish(verify_served(asked, paths, place=place, as_json=as_json, were_listed=where is None))
            return
        from chockstone.cli.local.targets import (
            find_archive,
            find_checkpoint,
            find_named,
            find_store,
            is_archive,
            list_entries,
        )
        from chockstone.cli.local.verdicts import verify_targets

        refuse(run, "--run", "is for a server; --prefix limits a store")
        if prefix and (named or is_archive(where)):
            raise typer.BadParameter(
                "a prefix selects checkpoints of a whole store; leave it out, or leave the names out",
                param_hint="--prefix",
            )
        place = f"{where}, below the prefix {prefix!r}," if prefix else where
        if is_archive(where):
            targets = [find_archive(word) for word in (where, *named)]
        else:
            store = find_store(where)
            listed = () if named else list_entries(store, prefix)
            targets = [find_named(store, word) for word in named]
            targets += [find_checkpoint(store, entry.name) for entry in listed]
        finish(verify_targets(targets, place=place, policy=policy, as_json=as_json, were_listed=not named))


def diff(
    where: Annotated[
        str, typer.Argument(metavar="STORE|FILE|PATH", help="Store; or the first archive file or tinker://… path.")
    ],
    before: Annotated[
        str,
        typer.Argument(metavar="NAME|FILE|PATH", help="First checkpoint in STORE; or the second file or path."),
    ],
    after: Annotated[str | None, typer.Argument(metavar="NAME", help="Second checkpoint in STORE.")] = None,
    server: ServerUrl = SERVER,
    key: Key = KEY,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Compare two checkpoints: tensors, values and files.

    Compares the restored state and the extracted files, and not the step, time, metrics and metadata. Exits
    with 0 if both are equal, and with 1 if they differ or one is damaged. Checkpoints of a server are
    downloaded to the directory for temporary files (TMPDIR) and deleted afterwards.

    \b
    Examples:
      chockstone checkpoints diff tinker://RUN/weights/s1 tinker://RUN/weights/s2
      chockstone checkpoints diff /data/checkpoints run-1/s100 run-1/s200
      chockstone checkpoints diff ./old.tar s3://bucket/runs/run-1/s100.tar
    """
    with reporting(as_json=as_json, debug=debug):
        from chockstone.cli.remote.addresses import is_address

        if is_address(where) or is_address(before):
            from chockstone.cli.remote.archives import compare_served
            from chockstone.cli.remote.client import connect

            refuse(after, repr(after), "is one argument too many: write two checkpoints, each by its path")
            finish(compare_served(connect(server, key), where, before, as_json=as_json))
            return
        from chockstone.cli.local.differences import compare_targets
        from chockstone.cli.local.targets import find_archive, find_named, find_store

        if after is None:
            pair = find_archive(where), find_archive(before)
        else:
            store = find_store(where)
            pair = find_named(store, before), find_named(store, after)
        finish(compare_targets(*pair, as_json=as_json))


def _one_run(word: str | None, run: str | None) -> str | None:
    if word is not None and run is not None:
        raise typer.BadParameter("the run is given twice; leave --run out", param_hint="--run")
    return word or run
