"""The command that stores checkpoints of other programs: ``import``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from chockstone.cli.commands.checkpoints.arguments import refuse
from chockstone.cli.commands.options import AsJson, Debug
from chockstone.cli.output.reporting import finish, reporting


def import_(
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="File or directory of the checkpoint, or of several with --all.")
    ],
    store: Annotated[str, typer.Argument(metavar="STORE", help="Directory, file://… or s3://bucket/prefix.")],
    source_format: Annotated[
        Literal["auto", "torch", "safetensors", "dcp", "lightning", "hf", "orbax"],
        typer.Option("--from", metavar="FORMAT", help="torch, safetensors, dcp, lightning, hf, orbax, or auto."),
    ] = "auto",
    name: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Name of the checkpoint.  [default: its step, otherwise the name of SOURCE]"),
    ] = None,
    prefix: Annotated[
        str, typer.Option(metavar="PREFIX", help="Folder in STORE, as a run's Checkpointer has it.")
    ] = "",
    step: Annotated[
        int | None, typer.Option(min=0, metavar="STEP", help="Step of the checkpoint.  [default: as SOURCE tells]")
    ] = None,
    kind: Annotated[str, typer.Option(metavar="KIND", help="Kind of the checkpoint.")] = "weights",
    under: Annotated[
        str | None, typer.Option(metavar="KEY", help="Store the whole content below this key, such as model.")
    ] = None,
    without: Annotated[
        list[str] | None, typer.Option(metavar="KEY", help="Top-level key to leave out (repeatable).")
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Import every checkpoint in SOURCE, with the steps of their names.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Read and check SOURCE, print the receipt, and store nothing.")
    ] = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Store a checkpoint of another program as an archive.

    Reads files of torch.save, safetensors (one file, or several with an index), directories of
    torch.distributed.checkpoint, Lightning checkpoints, checkpoint-* directories of the Hugging Face Trainer, and
    orbax directories. The receipt lists what was recognised, stored and left out. SOURCE is not changed.

    No code of SOURCE runs: a file that holds other Python objects than tensors and plain values is refused, and so
    are damaged files, compressed ones, and links out of the directory. A refused import stores nothing and exits
    with 1.

    The archive holds the keys that SOURCE has: `Checkpointer.restore` finds them under these names. A module's
    state dict is stored as `model`. Checkpoints of the Trainer are stored as its adapter saves them, so that a run
    resumes from them.

    \b
    Examples:
      chockstone checkpoints import old.pt ./checkpoints --prefix run-1 --step 9
      chockstone checkpoints import model.safetensors ./checkpoints --name base
      chockstone checkpoints import ./out/checkpoint-500 ./checkpoints --dry-run
      chockstone checkpoints import ./out s3://bucket/runs --prefix run-1 --all
    """
    with reporting(as_json=as_json, debug=debug):
        from chockstone.cli.local.importing import ImportTask, import_all, import_one
        from chockstone.cli.local.targets import find_store
        from chockstone.integrations.formats.importing import ImportPlace

        refuse(every and name, "--name", "names one checkpoint; --all takes the names from the steps")
        refuse(every and step is not None, "--step", "is of one checkpoint; --all takes the steps from the names")
        task = ImportTask(
            ImportPlace(prefix, name, step, kind),
            None if source_format == "auto" else source_format,
            under,
            tuple(without or ()),
            dry_run=dry_run,
        )
        found = find_store(store)
        if every:
            finish(import_all(Path(source), found, task, as_json=as_json))
        else:
            import_one(Path(source), found, task, as_json=as_json)
