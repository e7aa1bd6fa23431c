"""Exit codes: the one table for all commands. The help of each command and the reference are written from it."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Final


class ExitCode(IntEnum):
    OK = 0
    FAILED = 1
    USAGE = 2
    UNREACHABLE = 3
    INTERRUPTED = 130
    BROKEN_PIPE = 141
    TERMINATED = 143


MEANINGS: Final[Mapping[ExitCode, str]] = {
    ExitCode.OK: "The command did its work and found no problem. Answering no to a question is a success.",
    ExitCode.FAILED: (
        "A check found a problem: damage, a difference, a finding of the doctor, a run that cannot resume, "
        "log-probabilities of vLLM above the limit. Or the "
        "object does not exist: a checkpoint, a run, a key, or any archive to verify. Or the work failed: a "
        "checkpoint of another program cannot be imported, training did not finish, or the server did not start or "
        "ended with an error."
    ),
    ExitCode.USAGE: (
        "An argument, an option or a setting is wrong, or contradicts another one. The command changed nothing."
    ),
    ExitCode.UNREACHABLE: (
        "The server, the store or the catalog that the command asks does not exist or does not answer, refuses the "
        "API key or the credentials, or is in use by another process. Or the output cannot be written. `serve` exits "
        "with 1 instead."
    ),
    ExitCode.INTERRUPTED: (
        "Ctrl-C (SIGINT) ended the command. `train` saves a checkpoint first; `download` keeps the received part."
    ),
    ExitCode.BROKEN_PIPE: "The reader of the output closed it, as `head` does (SIGPIPE).",
    ExitCode.TERMINATED: "SIGTERM ended `train`, which saved a checkpoint first.",
}
EXIT_CODES: Final = (
    "Exit codes: 0 success; 1 problem found, or failed; 2 usage error; 3 not reachable, or denied; 130 interrupted."
)
