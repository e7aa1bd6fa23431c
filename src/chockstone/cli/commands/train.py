"""``chockstone train``: reinforcement learning from one command. Here are the words and the help."""

from __future__ import annotations

import os
import shlex
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Final, Literal

import typer
from typer.core import TyperOption

from chockstone.cli.commands.options import KEY, Debug, Key
from chockstone.cli.output.reporting import CommandFailed, finish, reporting

EPILOG: Final = (
    "Exit codes: 0 trained; 1 training failed; 2 usage, or nothing to train with or go on from; "
    "3 server not reachable; 130 or 143 stopped, with a checkpoint."
)


def train(
    context: typer.Context,
    env: Annotated[
        str,
        typer.Option(metavar="SPEC", help="What to learn: arithmetic, or one of your own as package.module:factory."),
    ],
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="All that the run leaves is here; the same one goes on with it.")
    ] = Path("chockstone-train"),
    model: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|[NAME=]DIR",
            show_default="a tiny one is made",
            help="A model of the server; or, without one, its Hugging Face directory.",
        ),
    ] = None,
    server: Annotated[
        str | None,
        typer.Option(
            metavar="URL", envvar="TINKER_BASE_URL", show_default="one of its own", help="The server to train on."
        ),
    ] = None,
    key: Key = KEY,
    steps: Annotated[
        int | None, typer.Option(metavar="N", show_default="100", help="Optimizer steps, those of earlier lives too.")
    ] = None,
    batch_size: Annotated[int | None, typer.Option(metavar="N", show_default="16", help="Problems in a step.")] = None,
    group_size: Annotated[int | None, typer.Option(metavar="N", show_default="8", help="Samples of each.")] = None,
    rank: Annotated[
        int | None, typer.Option(metavar="N", show_default="32", help="Of the adapter; 0 trains all weights.")
    ] = None,
    learning_rate: Annotated[float | None, typer.Option(metavar="RATE", show_default="1e-4", help="Of Adam.")] = None,
    schedule: Annotated[
        Literal["constant", "linear", "cosine"] | None,
        typer.Option(show_default="constant", help="Of the learning rate; the others come to zero at the last step."),
    ] = None,
    warmup_steps: Annotated[
        int | None, typer.Option(metavar="N", show_default="0", help="In which the learning rate rises from zero.")
    ] = None,
    loss: Annotated[
        Literal["importance_sampling", "ppo", "cispo"] | None,
        typer.Option(show_default="importance_sampling", help="What is minimised."),
    ] = None,
    kl: Annotated[
        float | None,
        typer.Option(metavar="WEIGHT", show_default="0", help="Of the penalty on leaving the model one began with."),
    ] = None,
    staleness: Annotated[
        int | None,
        typer.Option(
            metavar="K",
            show_default="1",
            help="Steps that samples may be old: 0 synchronous, 1 one-step-off, more asynchronous.",
        ),
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option(metavar="N", show_default="all that staleness allows", help="Problems tried at once."),
    ] = None,
    max_tokens: Annotated[int | None, typer.Option(metavar="N", show_default="64", help="Of an answer.")] = None,
    temperature: Annotated[float | None, typer.Option(metavar="T", show_default="1", help="Of the samples.")] = None,
    seed: Annotated[
        int | None, typer.Option(metavar="N", show_default="0", help="Of the adapter, the order and the samples.")
    ] = None,
    save_every: Annotated[
        int | None, typer.Option(metavar="N", show_default="10", help="Steps; 0 only saves at the end.")
    ] = None,
    export: Annotated[
        list[str] | None,
        typer.Option(
            metavar="sampler|hf", show_default="sampler", help="What is saved beside the training state; repeatable."
        ),
    ] = None,
    keep: Annotated[
        int | None, typer.Option(metavar="N", show_default="3", help="Checkpoints; older ones are deleted.")
    ] = None,
    evaluate_every: Annotated[
        int | None, typer.Option(metavar="N", show_default="0", help="Steps; 0 never evaluates.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE.svg", show_default=False, help="Draw the rewards here, too.")
    ] = None,
    tensorboard: Annotated[
        bool | None,
        typer.Option("--tensorboard/--no-tensorboard", show_default="if installed", help="Write event files."),
    ] = None,
    debug: Debug = False,
) -> None:
    """Train a model by reinforcement learning, sampling while it trains and while it saves.

    Needs nothing but an environment: it makes a tiny model and starts a server for itself, unless --model
    and --server (or TINKER_BASE_URL) name others. Run the same command again and it goes on where it
    stopped or was killed; no sample is trained twice, none is left out. Ctrl-C saves a checkpoint first;
    a second one exits at once. For arithmetic other settings than the defaults below are chosen, with
    which that model learns it in minutes.

    An environment of your own is a function, or class, that returns an object with problems and a
    reward: see `chockstone.trainers.Environment`. It is looked for in this directory, too.

    \b
    Examples:
      chockstone train --env arithmetic
      chockstone train --env arithmetic --out ./sync --staleness 0 --plot sync.svg
      chockstone train --env my_task:make --model ./models/qwen3-0.6b --steps 500 --save-every 25 --export hf
      chockstone train --env my_task:make --server http://gpu:8000 --model Qwen/Qwen3-8B --staleness 4
    """
    with reporting(as_json=False, debug=debug):
        if find_spec("tinker") is None:
            raise CommandFailed(
                "training needs the Tinker SDK, which is not installed: pip install 'chockstone[train]'"
            )
        if plot is not None and plot.suffix != ".svg":
            raise typer.BadParameter(f"the plot is drawn as SVG: {str(plot)!r} must end in '.svg'", param_hint="--plot")
        if not server:
            os.environ.setdefault("HF_HUB_OFFLINE", "1")  # before anyone reads it: nothing is downloaded
        from chockstone.cli.training.run import TrainRequest, run

        settings = {
            "steps": steps,
            "batch_size": batch_size,
            "group_size": group_size,
            "rank": rank,
            "learning_rate": learning_rate,
            "schedule": schedule,
            "warmup_steps": warmup_steps,
            "loss": loss,
            "kl_coefficient": kl,
            "staleness": staleness,
            "concurrency": concurrency,
            "max_tokens": max_tokens,
            "temperature": temperature,
            "seed": seed,
            "save_every": save_every,
            "exports": tuple(export) if export else None,
            "keep": keep,
            "evaluate_every": evaluate_every,
        }

        code = run(
            TrainRequest(
                environment=env,
                out=out,
                settings={name: value for name, value in settings.items() if value is not None},
                model=model,
                server=server or None,
                key=key,
                plot=plot,
                tensorboard=tensorboard,
                debug=debug,
                command_for=lambda steps: repeated_command(context, steps),
            )
        )
    finish(code)


def repeated_command(context: typer.Context, steps: int) -> str:
    """The command as it was given, but with so many steps. The key is left to the environment."""
    words = ["chockstone", "train"]
    for option in context.command.params:
        name = option.name or ""
        source = context.get_parameter_source(name)
        if not isinstance(option, TyperOption) or source is None or source.name != "COMMANDLINE":
            continue
        if name in ("steps", "key"):
            continue
        value = context.params[name]
        if isinstance(value, bool):
            words.append(option.opts[0] if value else option.secondary_opts[0])
            continue
        for each in value if isinstance(value, list) else [value]:
            words += [option.opts[0], str(each)]
    return shlex.join([*words, "--steps", str(steps)])
