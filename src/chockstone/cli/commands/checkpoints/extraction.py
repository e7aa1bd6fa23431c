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
    from chockstone.cli.local.extraction import ExportTask

ExportTarget = Literal["files", "torch", "safetensors", "dcp", "hf", "gguf"]
NumberType = Literal["f32", "f16", "bf16", "q8_0"]

Where = Annotated[str, typer.Argument(metavar="STORE|FILE|PATH", help="Store, archive file, or tinker://… path.")]
NameOrDirectory = Annotated[
    str, typer.Argument(metavar="NAME|DIRECTORY", help="Name of the checkpoint in STORE; otherwise DIRECTORY.")
]
NewDirectory = Annotated[
    str | None,
    typer.Argument(
        metavar="DIRECTORY",
        help="Directory, or file for --to torch and gguf, to create; it must not exist. Always the last argument.",
    ),
]
To = Annotated[
    ExportTarget, typer.Option("--to", metavar="FORMAT", help="Write files, torch, safetensors, dcp, hf or gguf.")
]
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
    str | None,
    typer.Option(metavar="DIRECTORY", help="Hugging Face directory of the base model for --merge and --to gguf."),
]
GgufType = Annotated[
    NumberType | None,
    typer.Option(
        "--type",
        metavar="TYPE",
        help="Type of the numbers of --to gguf: f32, f16, bf16 or q8_0.  [default: that of the base model]",
    ),
]
NoTokenizer = Annotated[
    bool, typer.Option("--no-tokenizer", help="Write --to gguf without a tokenizer: programs give it token ids.")
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
    gguf_type: GgufType = None,
    no_tokenizer: NoTokenizer = False,
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
    directory, from which a Hugging Face Trainer resumes. `import` reads all of these.

    --to gguf merges a checkpoint of a server's run into its base model, and writes one file for llama.cpp. It
    needs the extra gguf.

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
      chockstone checkpoints export tinker://RUN/sampler_weights/s100 ./s.gguf \\
          --to gguf --base ./models/qwen3-8b --type q8_0
    """
    with reporting(as_json=as_json, debug=debug):
        from chockstone.cli.remote.addresses import is_address

        place = directory or name
        refuse(
            to == "gguf" and not place.endswith(".gguf"), repr(place), "must end in .gguf, as --to gguf writes a file"
        )
        task = _read_task(to, member or [], part, shard_size, base, gguf_type, merge=merge, no_tokenizer=no_tokenizer)
        if not is_address(where):
            from chockstone.cli.local.extraction import write_target
            from chockstone.cli.local.targets import find_one

            target = find_one(where, None if directory is None else name)
            write_target(target, place, task, as_json=as_json)
            return
        from chockstone.cli.remote.addresses import find_readable
        from chockstone.cli.remote.archives import export_served
        from chockstone.cli.remote.client import connect

        refuse(directory, repr(directory), "is one argument too many: write the path and the directory")
        asked = connect(server, key)
        export_served(asked, find_readable(asked, where), place, task, as_json=as_json)


def _read_task(
    to: ExportTarget,
    members: list[str],
    part: str | None,
    shard_size: str | None,
    base: str | None,
    gguf_type: NumberType | None,
    *,
    merge: bool,
    no_tokenizer: bool,
) -> ExportTask:
    """What --to and the other options ask for."""
    from chockstone.cli.local.extraction import Conversion, Extraction, GgufExport, Merging
    from chockstone.cli.output.formatting import parse_size

    if to != "safetensors":
        refuse(part, "--part", "is for --to safetensors; the other formats hold the whole state")
        refuse(shard_size, "--shard-size", "is for --to safetensors")
    if to == "gguf":
        refuse(members, "--member", "selects files of a checkpoint; a merged model is written as a whole")
        if base is None:
            raise typer.BadParameter(
                "needs --base DIRECTORY, the model that the run was trained on", param_hint="--to gguf"
            )
        return GgufExport(base, gguf_type, with_tokenizer=not no_tokenizer)
    refuse(gguf_type, "--type", "is for --to gguf")
    refuse(no_tokenizer, "--no-tokenizer", "is for --to gguf")
    if merge != (base is not None):
        raise typer.BadParameter("--merge and --base DIRECTORY need each other", param_hint="--merge")
    refuse(merge and members, "--member", "selects files of a checkpoint; a merged model is written as a whole")
    if to != "files":
        refuse(merge or members, "--merge or --member", f"cannot be combined with --to {to}")
        return Conversion(to, part, None if shard_size is None else parsed(parse_size, shard_size, "--shard-size"))
    return Extraction(members) if base is None else Merging(base)


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
