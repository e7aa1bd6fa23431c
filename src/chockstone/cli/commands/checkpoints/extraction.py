"""Commands that write a checkpoint to this machine: ``export`` and ``download``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

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
    parsed,
)
from chockstone.cli.output.reporting import reporting

if TYPE_CHECKING:
    from chockstone.cli.local.extraction import Conversion

ExportTarget = Literal["files", "torch", "safetensors", "dcp", "hf"]

Where = Annotated[str, typer.Argument(metavar="STORE|FILE|PATH", help="Store, archive file, or tinker://… path.")]
NameOrDirectory = Annotated[
    str, typer.Argument(metavar="NAME|DIRECTORY", help="Name of the checkpoint in STORE; otherwise DIRECTORY.")
]
NewDirectory = Annotated[
    str | None,
    typer.Argument(
        metavar="DIRECTORY",
        help="Directory, or file for --to torch, to create; it must not exist. Always the last argument.",
    ),
]
To = Annotated[ExportTarget, typer.Option("--to", metavar="FORMAT", help="Write files, torch, safetensors, dcp or hf.")]
Part = Annotated[
    str | None, typer.Option(metavar="KEY", help="Key of the model for --to safetensors.  [default: model]")
]
ShardSize = Annotated[
    str | None,
    typer.Option(metavar="SIZE", help="Largest file of --to safetensors in a directory.  [default: 5GB]"),
]
Members = Annotated[
    list[str] | None, typer.Option(metavar="NAME|PATTERN", help="Member to extract (repeatable).  [default: all]")
]
Merge = Annotated[
    bool, typer.Option("--merge", help="Merge the adapter into its base model, and write the merged model.")
]
Base = Annotated[
    str | None, typer.Option(metavar="DIRECTORY", help="Hugging Face directory of the base model for --merge.")
]


def export(
    where: Where,
    name: NameOrDirectory,
    directory: NewDirectory = None,
    to: To = "files",
    part: Part = None,
    shard_size: ShardSize = None,
    member: Members = None,
    merge: Merge = False,
    base: Base = None,
    server: ServerUrl = SERVER,
    key: Key = KEY,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Extract or convert a checkpoint into new files, verified.

    The directory appears complete and durable at the end, or not at all. The archive of a server is
    downloaded first, beside the directory; after an interruption the same command resumes the download.
    `tar xf` extracts an archive as well, without verification.

    --to torch writes one file that torch.load(weights_only=True) opens. --to safetensors writes the model: one
    file if the name ends in .safetensors, otherwise a directory, with an index if it needs several files.
    --to dcp writes a directory that torch.distributed.checkpoint loads. --to hf writes a checkpoint-N
    directory, from which a Hugging Face Trainer resumes. `import` reads all of them.

    \b
    Examples:
      chockstone checkpoints export tinker://RUN/sampler_weights/s100 ./adapter
      chockstone checkpoints export tinker://RUN/sampler_weights/s100 ./merged \\
          --merge --base ./models/qwen3-8b
      chockstone checkpoints export /data/checkpoints run-1/s100 ./adapter \\
          --member '*.safetensors'
      chockstone checkpoints export ./step-00000100.tar ./unpacked
      chockstone checkpoints export /data/checkpoints run-1/s100 ./s.pt --to torch
      chockstone checkpoints export ./step-00000100.tar ./dcp --to dcp
    """
    with reporting(as_json=as_json, debug=debug):
        from chockstone.cli.remote.addresses import is_address

        if merge != (base is not None):
            raise typer.BadParameter("--merge and --base DIRECTORY need each other", param_hint="--merge")
        refuse(merge and member, "--member", "selects files of a checkpoint; a merged model is written as a whole")
        refuse(to != "files" and (merge or member), "--merge or --member", f"cannot be combined with --to {to}")
        conversion = _read_conversion(to, part, shard_size)
        if not is_address(where):
            _export_here(where, name, directory, member or [], base, conversion, as_json=as_json)
            return
        from chockstone.cli.remote.addresses import find_readable
        from chockstone.cli.remote.archives import export_served
        from chockstone.cli.remote.client import connect

        refuse(directory, repr(directory), "is one argument too many: write the path and the directory")
        asked = connect(server, key)
        path = find_readable(asked, where)
        export_served(asked, path, name, members=member or [], base=base, conversion=conversion, as_json=as_json)


def _export_here(
    where: str,
    name: str,
    directory: str | None,
    members: list[str],
    base: str | None,
    conversion: Conversion | None,
    *,
    as_json: bool,
) -> None:
    """Write a checkpoint of a store or a file of this machine."""
    from chockstone.cli.local.extraction import convert_target, export_target, merge_target
    from chockstone.cli.local.targets import find_one

    target = find_one(where, None if directory is None else name)
    if conversion is not None:
        convert_target(target, directory or name, conversion, as_json=as_json)
    elif base is not None:
        merge_target(target, directory or name, base=base, as_json=as_json)
    else:
        export_target(target, directory or name, members=members, as_json=as_json)


def _read_conversion(to: ExportTarget, part: str | None, shard_size: str | None) -> Conversion | None:
    """What --to and its options ask for; None extracts the members."""
    from chockstone.cli.local.extraction import Conversion
    from chockstone.cli.output.formatting import parse_size

    if to != "safetensors":
        refuse(part, "--part", "is for --to safetensors; the other formats hold the whole state")
        refuse(shard_size, "--shard-size", "is for --to safetensors")
    if to == "files":
        return None
    return Conversion(to, part, None if shard_size is None else parsed(parse_size, shard_size, "--shard-size"))


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
