"""``chockstone checkpoints``: the group that its commands belong to."""

from __future__ import annotations

from typing import ClassVar

import typer

from chockstone.cli.commands.lazy_group import LazyCommand, LazyGroup
from chockstone.cli.output.exit_codes import EXIT_CODES


class CheckpointCommands(LazyGroup):
    PANELS: ClassVar = {
        "Read": {
            "ls": LazyCommand("checkpoints.contents", "List checkpoints with size, age and state.", "ls"),
            "show": LazyCommand(
                "checkpoints.contents", "Show one checkpoint: facts, members, tensors and values.", "show"
            ),
            "verify": LazyCommand("checkpoints.contents", "Verify checkpoints against their digests.", "verify"),
            "diff": LazyCommand("checkpoints.contents", "Compare two checkpoints: tensors, values and files.", "diff"),
        },
        "Copy to this machine": {
            "export": LazyCommand(
                "checkpoints.extraction", "Extract or convert a checkpoint into new files, verified.", "export"
            ),
            "download": LazyCommand(
                "checkpoints.extraction", "Download a checkpoint of a server as one archive, verified.", "download"
            ),
        },
        "Move from other programs": {
            "import": LazyCommand(
                "checkpoints.conversion", "Store a checkpoint of another program as an archive.", "import_"
            ),
        },
        "Delete": {
            "rm": LazyCommand("checkpoints.removal", "Delete checkpoints by name, or by run, kind and age.", "rm"),
            "gc": LazyCommand("checkpoints.removal", "Delete checkpoints that no retention rule keeps.", "gc"),
        },
        "Share, on a server": {
            "publish": LazyCommand("checkpoints.sharing", "Let all users of the server read a checkpoint.", "publish"),
            "unpublish": LazyCommand("checkpoints.sharing", "Make a published checkpoint private again.", "unpublish"),
            "ttl": LazyCommand("checkpoints.sharing", "Set the lifetime of a checkpoint, counted from now.", "ttl"),
            "copy": LazyCommand(
                "checkpoints.sharing", "Copy your own or a published checkpoint into a new run.", "copy"
            ),
        },
    }


commands = typer.Typer(
    cls=CheckpointCommands, no_args_is_help=True, add_completion=False, rich_markup_mode=None, epilog=EXIT_CODES
)


@commands.callback()
def checkpoints() -> None:
    """List, verify, import, export, share and delete checkpoints.

    The commands work on a server or on a store. They ask a server if no STORE is given, or if a
    PATH tinker://RUN/KIND/NAME is given: the server of --server or TINKER_BASE_URL, with the API key of
    --key or TINKER_API_KEY.

    A STORE is a directory or a URL such as s3://bucket/prefix. NAME is the name that `ls` prints. Instead of
    STORE and NAME you may give one archive file, FILE.tar. Stores need no server. Change checkpoints that belong
    to a server only through the server; `chockstone doctor` compares its store and its catalog.

    RUN may be shortened to a unique prefix. In commands that only read, NAME may be shortened, too.

    \b
    Examples:
      chockstone checkpoints ls
      chockstone checkpoints export tinker://RUN/sampler_weights/s100 ./adapter
      chockstone checkpoints rm --run RUN --kind weights --older-than 7d --dry-run
      chockstone checkpoints ls /data/checkpoints
      chockstone checkpoints verify s3://bucket/runs --prefix run-1
      chockstone checkpoints show ./step-00000100.tar
    """
