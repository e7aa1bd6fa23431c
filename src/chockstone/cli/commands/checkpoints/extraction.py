"""Commands that write a checkpoint to this machine: ``export`` and ``download``."""

from __future__ import annotations

from typing import Annotated

import typer

from chockstone.cli.commands.checkpoints.arguments import refuse
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
    where: Annotated[str, typer.Argument(metavar="STORE|FILE|PATH", help="Store, archive file, or tinker://… path.")],
    name: Annotated[
        str, typer.Argument(metavar="NAME|DIRECTORY", help="Name of the checkpoint in STORE; otherwise DIRECTORY.")
    ],
    directory: Annotated[
        str | None,
        typer.Argument(metavar="DIRECTORY", help="Directory to create; it must not exist. Always the last argument."),
    ] = None,
    member: Annotated[
        list[str] | None, typer.Option(metavar="NAME|PATTERN", help="Member to extract (repeatable).  [default: all]")
    ] = None,
    merge: Annotated[
        bool, typer.Option("--merge", help="Merge the adapter into its base model, and write the merged model.")
    ] = False,
    base: Annotated[
        str | None, typer.Option(metavar="DIRECTORY", help="Hugging Face directory of the base model for --merge.")
    ] = None,
    server: ServerUrl = SERVER,
    key: Key = KEY,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Extract a checkpoint into a new directory, verified.

    The directory appears complete and durable at the end, or not at all. The archive of a server is
    downloaded first, beside the directory; after an interruption the same command resumes the download.
    `tar xf` extracts an archive as well, without verification.

    \b
    Examples:
      chockstone checkpoints export tinker://RUN/sampler_weights/s100 ./adapter
      chockstone checkpoints export tinker://RUN/sampler_weights/s100 ./merged \\
          --merge --base ./models/qwen3-8b
      chockstone checkpoints export /data/checkpoints run-1/s100 ./adapter \\
          --member '*.safetensors'
      chockstone checkpoints export ./step-00000100.tar ./unpacked
    """
    with reporting(as_json=as_json, debug=debug):
        from chockstone.cli.remote.addresses import find_readable, is_address

        if merge != (base is not None):
            raise typer.BadParameter("--merge and --base DIRECTORY need each other", param_hint="--merge")
        refuse(merge and member, "--member", "selects files of a checkpoint; a merged model is written as a whole")
        if is_address(where):
            from chockstone.cli.remote.archives import export_served
            from chockstone.cli.remote.client import connect

            refuse(directory, repr(directory), "is one argument too many: write the path and the directory")
            asked = connect(server, key)
            path = find_readable(asked, where)
            export_served(asked, path, name, members=member or [], base=base, as_json=as_json)
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
    file: Annotated[str, typer.Argument(metavar="FILE", help="File to create; it must not exist.")],
    server: ServerUrl = SERVER,
    key: Key = KEY,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Download a checkpoint of a server as one archive, verified.

    FILE appears when all bytes have arrived and every digest is right. After an interruption the same
    command resumes the download. `show`, `verify`, `export` and `diff` read the file.

    \b
    Example:
      chockstone checkpoints download tinker://RUN/weights/s100 ./s100.tar
    """
    with reporting(as_json=as_json, debug=debug):
        from chockstone.cli.remote.addresses import find_readable
        from chockstone.cli.remote.archives import download_served
        from chockstone.cli.remote.client import connect

        asked = connect(server, key)
        download_served(asked, find_readable(asked, path), file, as_json=as_json)
