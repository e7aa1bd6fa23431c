"""Commands that write a checkpoint to this machine: ``export`` and ``download``."""

from __future__ import annotations

from typing import Annotated

import typer

from chockstone.cli.commands.checkpoints.arguments import parse_paths, refuse
from chockstone.cli.commands.options import (
    KEY,
    SERVER,
    AsJson,
    Debug,
    Key,
    PathWord,
    ServerUrl,
)
from chockstone.cli.output.reporting import reporting


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
    downloaded first, beside the directory; interrupted, the same command resumes where it ended. `tar xf`
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
        refuse(merge and member, "--member", "chooses files of a checkpoint; a merged model is whole")
        if is_address(where):
            from chockstone.cli.remote.archives import export_served
            from chockstone.cli.remote.client import connect

            refuse(directory, repr(directory), "is too much: write the path and the directory")
            [path] = parse_paths(where)
            export_served(connect(server, key), path, name, members=member or [], base=base, as_json=as_json)
            return
        from chockstone.cli.local.extraction import export_target, merge_target
        from chockstone.cli.local.targets import find_one

        target = find_one(where, None if directory is None else name)
        if base is not None:
            merge_target(target, directory or name, base=base, as_json=as_json)
        else:
            export_target(target, directory or name, members=member or [], as_json=as_json)


def download(
    path: PathWord,
    file: Annotated[str, typer.Argument(metavar="FILE", help="Where to; must not exist.")],
    server: ServerUrl = SERVER,
    key: Key = KEY,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Fetch a checkpoint of a server as one archive, verified.

    FILE is there when all of it has arrived and every digest is right. Interrupted, the same command
    resumes where it ended. `show`, `verify`, `export` and `diff` read the file.

    \b
    Example:
      chockstone checkpoints download tinker://RUN/weights/step-100 ./step-100.tar
    """
    with reporting(as_json=as_json, debug=debug):
        from chockstone.cli.remote.addresses import find_path
        from chockstone.cli.remote.archives import download_served
        from chockstone.cli.remote.client import connect

        download_served(connect(server, key), find_path(path), file, as_json=as_json)
