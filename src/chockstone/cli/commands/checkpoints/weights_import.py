"""``chockstone import``: brings adapters and weights of other programs to a server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from chockstone.cli.commands.options import KEY, SERVER, AsJson, Debug, Key, ServerUrl
from chockstone.cli.output.reporting import reporting


def import_(
    source: Annotated[str, typer.Argument(metavar="DIR", help="Directory of the adapter or of the model.")],
    model: Annotated[
        str, typer.Option("--model", metavar="NAME", help="Base model of the server that the weights belong to.")
    ],
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name of the checkpoint.  [default: imported]")
    ] = None,
    project: Annotated[str | None, typer.Option(metavar="ID", help="Project that the new run belongs to.")] = None,
    alpha: Annotated[
        float | None,
        typer.Option(min=0.0, metavar="ALPHA", help="lora_alpha of an adapter in a format that does not tell it."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Read DIR, print what is in it, and send nothing.")
    ] = False,
    server: ServerUrl = SERVER,
    key: Key = KEY,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Import an adapter or full weights as a checkpoint of a server.

    Reads PEFT directories (safetensors), the checkpoints of TuFT, LoRA checkpoints of SkyRL, directories of
    torch.distributed.checkpoint with an adapter or a model, and Hugging Face models in safetensors. The server
    checks names, shapes and options against the base model. What would change the adapter is refused, and a
    refused import leaves nothing behind.

    The result is a training checkpoint of a new run that is not loaded. It can be sampled, and a run can be
    created from it. It has no optimizer moments.

    \b
    Examples:
      chockstone import ./my-adapter --model Qwen/Qwen3-8B
      chockstone import ./my-adapter --model Qwen/Qwen3-8B --name start --dry-run
      chockstone import ./dcp/step-100 --model Qwen/Qwen3-8B --alpha 16
    """
    with reporting(as_json=as_json, debug=debug):
        from chockstone.cli.importing.sending import import_weights
        from chockstone.cli.remote.client import connect

        import_weights(
            connect(server, key),
            Path(source),
            base_model=model,
            name=name,
            project_id=project,
            alpha=alpha,
            dry_run=dry_run,
            as_json=as_json,
        )
