"""``chockstone checkpoints``: the group that its commands belong to."""

from __future__ import annotations

import typer

from chockstone.cli.commands.checkpoints import policy, trash
from chockstone.cli.commands.checkpoints.contents import diff, ls, show, verify
from chockstone.cli.commands.checkpoints.extraction import download, export
from chockstone.cli.commands.checkpoints.removal import gc, rm
from chockstone.cli.commands.checkpoints.sharing import copy, publish, ttl, unpublish
from chockstone.cli.output.reporting import EXIT_CODES

commands = typer.Typer(no_args_is_help=True, rich_markup_mode=None, epilog=EXIT_CODES)
for command in (ls, show, verify, export, download, rm, gc, diff, publish, unpublish, ttl, copy, trash.undelete):
    commands.command(epilog=EXIT_CODES)(command)
commands.add_typer(trash.commands, name="trash")
commands.add_typer(policy.commands, name="policy")


@commands.callback()
def checkpoints() -> None:
    """Look at, check, take out, share and remove saved checkpoints.

    Without a STORE, or with a PATH tinker://RUN/KIND/NAME in its place, a server is asked: the one that
    --server or TINKER_BASE_URL names, with the key of --key or TINKER_API_KEY.

    A STORE is a directory or a URL; NAME is what `ls` shows of it. Where one checkpoint is wanted, the
    path of a single archive FILE.tar may stand for STORE and NAME. Stores need no server; what belongs
    to a server is changed through it, and `chockstone doctor` looks at both.

    \b
    Examples:
      chockstone checkpoints ls
      chockstone checkpoints export tinker://RUN/sampler_weights/step-100 ./adapter
      chockstone checkpoints rm --run RUN --kind weights --older-than 7d --dry-run
      chockstone checkpoints ls /data/checkpoints
      chockstone checkpoints verify s3://bucket/runs --prefix run-1
      chockstone checkpoints show ./step-00000100.tar
    """
