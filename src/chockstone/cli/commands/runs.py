"""``chockstone runs``: lists, shows and removes the training runs of a server."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer

from chockstone.cli.commands.options import KEY, SERVER, AsJson, Debug, DryRun, Key, RunWord, ServerUrl, Yes
from chockstone.cli.output.exit_codes import EXIT_CODES
from chockstone.cli.output.reporting import finish, reporting

commands = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None, epilog=EXIT_CODES)


@commands.callback()
def runs() -> None:
    """List, show and delete the training runs of a server.

    RUN is the id of a run, or a unique prefix of it, as `ls` prints it.

    \b
    Examples:
      chockstone runs ls
      chockstone runs show RUN
      chockstone runs metrics RUN
      chockstone runs recoveries RUN
      chockstone runs rm RUN
    """


@commands.command(epilog=EXIT_CODES)
def ls(
    full_ids: Annotated[bool, typer.Option("--full-ids", help="Print ids in full.")] = False,
    server: ServerUrl = SERVER,
    key: Key = KEY,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """List your runs with model, step, last loss, age and parent.

    Newest first. STEP counts optimizer steps. LOSS is that of the last forward_backward, the mean over the weighted
    tokens. FROM is the run whose checkpoint was loaded into this run.

    \b
    Example:
      chockstone runs ls
    """
    with reporting(as_json=as_json, debug=debug):
        from chockstone.cli.remote.client import connect
        from chockstone.cli.remote.runs import list_runs

        list_runs(connect(server, key), now=datetime.now(UTC), full_ids=full_ids, as_json=as_json)


@commands.command(epilog=EXIT_CODES)
def show(
    run: RunWord,
    server: ServerUrl = SERVER,
    key: Key = KEY,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Show one run: progress, lineage, metadata and checkpoints.

    The lineage is the chain of checkpoints that the run was made from, nearest first.

    \b
    Example:
      chockstone runs show RUN
    """
    with reporting(as_json=as_json, debug=debug):
        from chockstone.cli.remote.addresses import find_run
        from chockstone.cli.remote.client import connect
        from chockstone.cli.remote.runs import show_run

        asked = connect(server, key)
        show_run(asked, find_run(asked, run), now=datetime.now(UTC), as_json=as_json)


@commands.command(epilog=EXIT_CODES)
def metrics(
    run: RunWord,
    names: Annotated[
        str | None, typer.Option(metavar="NAME,…", help="Series to show, separated by commas; default: the main ones.")
    ] = None,
    last: Annotated[int, typer.Option(min=1, max=10_000, help="Number of steps in the table.")] = 20,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Print new steps as they end, until Ctrl-C.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print all points as CSV.")] = False,
    server: ServerUrl = SERVER,
    key: Key = KEY,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Show loss, learning rate, gradient norm and your own series.

    A row is one optimizer step. LOSS is the mean over the weighted tokens of its forward_backward calls. TOKENS and
    SECONDS are sums. Series that clients reported to the run follow. `--csv` and `--json` print every point that the
    server keeps; `--follow --json` prints one line of JSON per point.

    \b
    Examples:
      chockstone runs metrics RUN
      chockstone runs metrics RUN --follow
      chockstone runs metrics RUN --csv > metrics.csv
      chockstone runs metrics RUN --names loss,reward --json
    """
    with reporting(as_json=as_json, debug=debug):
        if as_csv and (as_json or follow):
            raise typer.BadParameter("--csv goes without --json and --follow", param_hint="--csv")
        from chockstone.cli.remote.addresses import find_run
        from chockstone.cli.remote.client import connect
        from chockstone.cli.remote.metrics.run_metrics import follow_metrics, print_csv, print_metrics

        asked = connect(server, key)
        run_id, chosen = find_run(asked, run), names.split(",") if names else None
        if as_csv:
            print_csv(asked, run_id, names=chosen)
        elif follow:
            follow_metrics(asked, run_id, names=chosen, last=last, as_json=as_json)
        else:
            print_metrics(asked, run_id, names=chosen, last=last, as_json=as_json)


@commands.command(epilog=EXIT_CODES)
def recoveries(
    run: RunWord,
    server: ServerUrl = SERVER,
    key: Key = KEY,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """List the recoveries of a run, and compare the results.

    A recovery loads the newest recovery archive and replays the journal. The server compares the result of each
    replayed forward_backward and optim_step with the result of the first execution, bit by bit. Operations that
    return no numbers, such as the creation of the run, are not compared; the command lists them.

    \b
    Example:
      chockstone runs recoveries RUN
    """
    with reporting(as_json=as_json, debug=debug):
        from chockstone.cli.remote.addresses import find_run
        from chockstone.cli.remote.client import connect
        from chockstone.cli.remote.recoveries import list_recoveries

        asked = connect(server, key)
        list_recoveries(asked, find_run(asked, run), now=datetime.now(UTC), as_json=as_json)


@commands.command(epilog=EXIT_CODES)
def rm(
    words: Annotated[list[str], typer.Argument(metavar="RUN", help="Ids of runs, or unique prefixes of them.")],
    yes: Yes = False,
    dry_run: DryRun = False,
    server: ServerUrl = SERVER,
    key: Key = KEY,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Delete runs with their checkpoints.

    Ends a run that is still loaded, deletes its journal, its metrics and its recovery archives, moves its checkpoints
    to the trash (or deletes them, if the server has no trash), and removes it from `ls`. The confirmation lists the
    checkpoints and names published ones. Copies of its checkpoints, and runs that were made from them, stay.

    \b
    Examples:
      chockstone runs rm RUN --dry-run
      chockstone runs rm RUN RUN --yes
    """
    with reporting(as_json=as_json, debug=debug):
        from chockstone.cli.remote.addresses import find_run
        from chockstone.cli.remote.client import connect
        from chockstone.cli.remote.removal import remove_runs

        asked = connect(server, key)
        run_ids = list(dict.fromkeys(find_run(asked, word) for word in words))
        finish(remove_runs(asked, run_ids, yes=yes, dry_run=dry_run, as_json=as_json))
