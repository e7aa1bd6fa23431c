"""``chockstone model``: downloads models, makes small ones for trying things, and plans their memory."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from chockstone.cli.models.shape import Architecture
from chockstone.cli.output.exit_codes import EXIT_CODES, ExitCode
from chockstone.cli.output.formatting import format_size, parse_size, printable
from chockstone.cli.output.reporting import reporting
from chockstone.cli.output.terminal import print_json, print_line, print_stderr, spinner
from chockstone.extras import require

if TYPE_CHECKING:
    from chockstone.cli.models.making import MadeModel

_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)([KM]?)", re.IGNORECASE)
_SMALLEST, _LARGEST = 1_000_000, 300_000_000

commands = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None, epilog=EXIT_CODES)


@commands.callback()
def model() -> None:
    """Download or make models, and plan their memory.

    \b
    Examples:
      chockstone model pull Qwen/Qwen3-0.6B
      chockstone model make ./tiny
      chockstone model plan ./tiny --rank 32
    """


@commands.command(epilog=EXIT_CODES)
def make(
    directory: Annotated[str, typer.Argument(metavar="DIR", help="Directory to create.")],
    architecture: Annotated[Architecture, typer.Option(help="Model family: layers and chat template.")] = "qwen3",
    size: Annotated[str, typer.Option(metavar="1M..300M", help="Approximate number of parameters.")] = "1M",
    vocab: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, show_default="chosen by size", help="Number of tokens in the vocabulary."),
    ] = None,
    seed: Annotated[
        int, typer.Option(min=0, help="Seed of the weights; the same seed gives the same bytes.", metavar="N")
    ] = 0,
    force: Annotated[bool, typer.Option("--force", help="Write into a directory that is not empty.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Print the traceback of an error.")] = False,
) -> None:
    """Write a small random model with tokenizer and chat template.

    Writes a Hugging Face directory that transformers, PEFT and `serve` load. The weights are random: the model
    samples noise until it is trained. Nothing is downloaded.

    \b
    Examples:
      chockstone model make ./tiny
      chockstone model make ./llama-100m --architecture llama --size 100M --seed 1
    """
    with reporting(as_json=False, debug=debug):
        require("server", "`chockstone model make`", packages=["safetensors", "tokenizers"])
        from chockstone.cli.models.making import ModelNotMade, make_model

        parameters = _parse_size(size)
        try:
            with spinner(f"making a model of {size} random parameters"):
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
            raise typer.Exit(ExitCode.USAGE) from None
        _print_made(made)


@commands.command(epilog=EXIT_CODES)
def pull(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the model on the hub: ORGANIZATION/NAME.")],
    revision: Annotated[
        str | None,
        typer.Option(metavar="REVISION", show_default="main", help="Branch, tag or commit of the model."),
    ] = None,
    debug: Annotated[bool, typer.Option("--debug", help="Print the traceback of an error.")] = False,
) -> None:
    """Download a model from the Hugging Face hub into the local cache.

    Downloads configuration, tokenizer and weights in safetensors; no pickle files and no code. Files that the
    cache has are not downloaded again. The variables HF_HOME, HF_TOKEN, HF_ENDPOINT and HF_HUB_OFFLINE apply.

    \b
    Examples:
      chockstone model pull Qwen/Qwen3-0.6B
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
            raise typer.Exit(ExitCode.UNREACHABLE if error.may_pass else ExitCode.USAGE) from None
        print_line(f"{name} is in {printable(str(directory))}")
        is_found_by_name = revision is None and not Path(name).parent.is_dir()  # otherwise `serve` reads a path
        word = name if is_found_by_name else f"{name}={directory}"
        print_line(f"Serve it: chockstone serve --model {printable(shlex.quote(word))}")


@commands.command(epilog=EXIT_CODES)
def plan(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Directory with the config.json of the model.")],
    rank: Annotated[int, typer.Option(min=0, metavar="N", help="Rank of the LoRA; 0 trains all weights.")] = 32,
    context: Annotated[
        int | None,
        typer.Option(min=1, metavar="TOKENS", show_default="the model's, up to 32768", help="Length of a datum."),
    ] = None,
    runs: Annotated[int, typer.Option(min=1, metavar="N", help="Number of runs in memory at once.")] = 1,
    gpu_memory: Annotated[
        str | None,
        typer.Option(metavar="SIZE", show_default="this machine's memory", help="Memory of the GPU, such as 80GiB."),
    ] = None,
    dtype: Annotated[
        str, typer.Option(metavar="auto|float32|bfloat16|float16", help="Type of the base weights, as for serve.")
    ] = "auto",
    optimizer: Annotated[str, typer.Option(metavar="adamw|sgd", help="Optimizer of the runs.")] = "adamw",
    tokens_per_micro_batch: Annotated[
        int, typer.Option(min=0, metavar="N", help="Tokens in a micro-batch, as for serve; 0 is chosen by device.")
    ] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Print the traceback of an error.")] = False,
) -> None:
    """Print how much memory a model and its runs take.

    Computes with shapes alone: reads config.json and no weights, so models of any size can be planned anywhere.
    The exit code is 1 if the plan does not fit.

    \b
    Examples:
      chockstone model plan ./Qwen3-8B --context 32768 --gpu-memory 80GiB
      chockstone model plan ./tiny --runs 4 --json
    """
    with reporting(as_json=as_json, debug=debug):
        require("server", "`chockstone model plan`", packages=["torch", "transformers"])
        from chockstone.cli.models.planning import PlanRequest, plan_model, print_plan

        request = PlanRequest(
            directory=directory,
            rank=rank,
            context=context,
            runs=runs,
            gpu_bytes=None if gpu_memory is None else _parse_memory(gpu_memory),
            dtype=dtype,
            optimizer=optimizer,
            tokens_per_micro_batch=tokens_per_micro_batch,
        )
        with spinner("planning the memory"):
            planned = plan_model(request)
        if as_json:
            print_json(planned.to_json())
        else:
            print_plan(planned)
        if not planned.plan.fits:
            raise typer.Exit(ExitCode.FAILED)


def _parse_memory(text: str) -> int:
    try:
        return parse_size(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--gpu-memory") from None


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
