"""``chockstone checkpoints``: the group that its commands belong to."""

from __future__ import annotations

from typing import ClassVar

import typer

from chockstone.cli.commands.lazy_group import LazyCommand, LazyGroup
from chockstone.cli.output.reporting import EXIT_CODES


class CheckpointCommands(LazyGroup):
    COMMANDS: ClassVar = {
        "ls": LazyCommand("checkpoints.contents", "List checkpoints with size, age and state.", "ls"),
        "show": LazyCommand("checkpoints.contents", "Show one checkpoint: facts, members, tensors, values.", "show"),
        "verify": LazyCommand("checkpoints.contents", "Check checkpoints against their digests.", "verify"),
        "export": LazyCommand(
            "checkpoints.extraction", "Extract a checkpoint into a new directory, verified.", "export"
        ),
        "download": LazyCommand(
            "checkpoints.extraction", "Fetch a checkpoint of a server as one archive, verified.", "download"
        ),
        "rm": LazyCommand("checkpoints.removal", "Remove checkpoints by name, or by run, kind and age.", "rm"),
        "gc": LazyCommand("checkpoints.removal", "Remove checkpoints that no rule keeps.", "gc"),
        "diff": LazyCommand("checkpoints.contents", "Say which tensors, values and files changed.", "diff"),
        "publish": LazyCommand("checkpoints.sharing", "Let every user of the server read a checkpoint.", "publish"),
        "unpublish": LazyCommand("checkpoints.sharing", "Make a published checkpoint private again.", "unpublish"),
        "ttl": LazyCommand("checkpoints.sharing", "Say when a checkpoint expires, counted from now.", "ttl"),
        "copy": LazyCommand(
            "checkpoints.sharing", "Copy a checkpoint of yours, or a published one, into a run of its own.", "copy"
        ),
        "trash": LazyCommand("checkpoints.trash", "List deleted checkpoints of a server that can be undeleted."),
        "undelete": LazyCommand("checkpoints.trash", "Take a checkpoint out of the server's trash.", "undelete"),
        "policy": LazyCommand("checkpoints.policy", "See and set which checkpoints a server keeps, and how much."),
    }


commands = typer.Typer(
    cls=CheckpointCommands, no_args_is_help=True, add_completion=False, rich_markup_mode=None, epilog=EXIT_CODES
)


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
