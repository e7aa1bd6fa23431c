"""``chockstone model``: downloads models, and makes small ones for trying things."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, Annotated, Final

import typer

from chockstone.cli.models.shape import Architecture
from chockstone.cli.output.formatting import format_size, printable
from chockstone.cli.output.reporting import BAD_INPUT, reporting
from chockstone.cli.output.terminal import print_line, print_stderr, spinner
from chockstone.extras import require

if TYPE_CHECKING:
    from chockstone.cli.models.making import MadeModel

EPILOG: Final = (
    "Exit codes: 0 fine; 2 usage, an unusable directory, or a model that cannot be downloaded; 130 interrupted."
)
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)([KM]?)", re.IGNORECASE)
_SMALLEST, _LARGEST = 1_000_000, 300_000_000

commands = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None, epilog=EPILOG)


@commands.callback()
def model() -> None:
    """Download models, or make small ones for trying things offline.

    \b
    Examples:
      chockstone model pull Qwen/Qwen3-0.6B
      chockstone model make ./tiny
    """


@commands.command(epilog=EPILOG)
def make(
    directory: Annotated[str, typer.Argument(metavar="DIR", help="Where to; will be made.")],
    architecture: Annotated[Architecture, typer.Option(help="Which family's layers and chat template.")] = "qwen3",
    size: Annotated[str, typer.Option(metavar="1M..300M", help="About how many parameters.")] = "1M",
    vocab: Annotated[
        int | None, typer.Option(metavar="N", min=1, show_default="to suit the size", help="Tokens it knows.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the weights; the same seed makes the same bytes.")] = 0,
    force: Annotated[bool, typer.Option("--force", help="Write into a directory that holds something.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Write a small random model with tokenizer and chat template.

    A Hugging Face directory like any other: transformers, PEFT and `serve` load it. It knows nothing, so
    what it says is noise until it is trained. Nothing is downloaded.

    \b
    Examples:
      chockstone model make ./tiny
      chockstone model make ./models/llama-100m --architecture llama --size 100M --vocab 32000 --seed 1
    """
    with reporting(as_json=False, debug=debug):
        require("server", "`chockstone model make`", packages=["safetensors", "tokenizers"])
        from chockstone.cli.models.making import ModelNotMade, make_model

        parameters = _parse_size(size)
        try:
            with spinner(f"drawing {size} random numbers"):
                made = make_model(
                    directory,
                    architecture=architecture,
                    parameters=parameters,
                    vocab_size=vocab,
                    seed=seed,
                    force=force,
                )
        except ModelNotMade as error:
            print_stderr(f"chockstone: {error}")
            raise typer.Exit(BAD_INPUT) from None
        _print_made(made)


@commands.command(epilog=EPILOG)
def pull(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the model on the hub: ORGANIZATION/NAME.")],
    revision: Annotated[
        str | None,
        typer.Option(metavar="REVISION", show_default="main", help="Branch, tag or commit of the model."),
    ] = None,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Download a model from the Hugging Face hub into the local cache.

    Downloads configuration, tokenizer and weights in safetensors; no pickle files and no code. Files that the
    cache has are not downloaded again. HF_HOME, HF_TOKEN, HF_ENDPOINT and HF_HUB_OFFLINE work as everywhere.

    \b
    Examples:
      chockstone model pull Qwen/Qwen3-0.6B && chockstone serve --model Qwen/Qwen3-0.6B
      chockstone model pull Qwen/Qwen3-0.6B --revision main
    """
    with reporting(as_json=False, debug=debug):
        require("server", "`chockstone model pull`", packages=["huggingface_hub"])
        from chockstone.cli.models.hub import ModelNotFetched, fetch

        try:
            directory = fetch(name, revision=revision)
        except ModelNotFetched as error:
            hint = ". Check the connection and try again, or set HF_ENDPOINT to another hub" if error.may_pass else ""
            print_stderr(f"chockstone: model {name!r} was not downloaded: {error}{hint}")
            raise typer.Exit(BAD_INPUT) from None
        print_line(f"{name} is in {printable(str(directory))}")
        word = name if revision is None else f"{name}={directory}"
        print_line(f"Serve it: chockstone serve --model {printable(shlex.quote(word))}")


def _parse_size(text: str) -> int:
    match = _SIZE.fullmatch(text.replace("_", ""))
    scale = {"": 1, "K": 1_000, "M": 1_000_000}
    count = round(float(match[1]) * scale[match[2].upper()]) if match else 0
    if not _SMALLEST <= count <= _LARGEST:
        raise typer.BadParameter(
            f"{text!r} is not a size from 1M to 300M, such as 1M, 12.5M or 100M", param_hint="--size"
        )
    return count


def _print_made(made: MadeModel) -> None:
    shape = made.shape
    for name, size_bytes in made.files:
        print_line(f"{format_size(size_bytes):>10}  {name}")
    print_line(
        f"{shape.architecture} with {made.parameters:,} random parameters: {shape.layers} layers of "
        f"{shape.hidden_size}, {shape.vocab_size:,} tokens; in {printable(str(made.directory))}"
    )
    word = f"{made.directory.absolute().name}={made.directory}"
    print_line(f"Serve it: chockstone serve --model {printable(shlex.quote(word))}")
