"""``chockstone samplers``: sampling sessions of a server, and how exact vLLM is for their weights."""

from __future__ import annotations

from typing import Annotated

import typer

from chockstone.cli.commands.options import KEY, SERVER, AsJson, Debug, Key, ServerUrl
from chockstone.cli.output.exit_codes import EXIT_CODES
from chockstone.cli.output.reporting import finish, reporting

commands = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None, epilog=EXIT_CODES)


@commands.callback()
def samplers() -> None:
    """List sampling sessions, and check how exact vLLM is.

    The worker of a server computes exact log-probabilities. A server with --sampler vllm measures how far those of
    each vLLM server are from them, before vLLM samples from the weights. Above --sampler-gap-limit the worker
    samples instead.

    \b
    Examples:
      chockstone samplers ls
      chockstone samplers check tinker://RUN/sampler_weights/s100
    """


@commands.command(epilog=EXIT_CODES)
def ls(
    last: Annotated[
        int, typer.Option("--last", metavar="N", min=1, max=1000, help="Number of sampling sessions, newest first.")
    ] = 50,
    server: ServerUrl = SERVER,
    key: Key = KEY,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """List sampling sessions with the gap of their weights, newest first.

    Those of finished sessions are left out. GAP is the mean absolute difference between log-probabilities of vLLM
    and of the worker, in nats, on the vLLM server where it is largest. Admins see the sampling sessions of all users.

    \b
    Examples:
      chockstone samplers ls
      chockstone samplers ls --json
    """
    with reporting(as_json=as_json, debug=debug):
        from chockstone.cli.remote.client import connect
        from chockstone.cli.remote.serving.samplers import list_samplers

        list_samplers(connect(server, key), last=last, as_json=as_json)


@commands.command(epilog=EXIT_CODES)
def check(
    sampler: Annotated[
        str,
        typer.Argument(
            metavar="SAMPLER", help="Path of a checkpoint (tinker://…), or id of a sampling session, as `ls` prints it."
        ),
    ],
    server: ServerUrl = SERVER,
    key: Key = KEY,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Measure now how far vLLM is from the exact log-probabilities.

    Each vLLM server of the model continues fixed prompts, and the worker scores the same tokens. Prints the mean and
    the largest absolute difference in nats, the limit, and a verdict. The server records the result. Exits with 1 if
    a gap is above the limit or could not be measured.

    \b
    Example:
      chockstone samplers check tinker://RUN/sampler_weights/s100
    """
    with reporting(as_json=as_json, debug=debug):
        from chockstone.cli.remote.client import connect
        from chockstone.cli.remote.serving.samplers import check_sampler

        finish(check_sampler(connect(server, key), sampler, as_json=as_json))
