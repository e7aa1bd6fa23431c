"""The log format: how a log record becomes text or JSON, in the server, its API replicas and its workers.

Text: ``time level logger message x_request_id=…``. Lines that begin with four spaces belong to the line above, so no
value can forge a line of its own. JSON: one object per line, in ASCII. Its ``fields`` are the ``name=value`` pairs of
the message, with the values that the code passed: they are found in the format string, which no client can choose.
"""

from __future__ import annotations

import json
import logging
import math
import re
import sys
import threading
import traceback
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache
from types import TracebackType
from typing import Any, Final, Literal

from chockstone.telemetry.origin import current_request_id

LogFormat = Literal["text", "json"]
LONGEST_MESSAGE: Final = 16_000  # characters; a stack of a held event loop may be long
_LONGEST_FIELD: Final = 4_000
_TEXT: Final = "%(asctime)s %(levelname)s %(name)s %(message)s"
_PLACEHOLDER: Final = re.compile(r"(?:(\w+)=)?%(\(\w+\))?[#0\- +]*(\*|\d+)?(?:\.(\*|\d+))?[hlL]?([diouxXeEfFgGcrsa%])")
_CONTINUED: Final = "\n    "
_TALKATIVE: Final = (
    *("botocore", "boto3", "urllib3"),  # whose debug lines hold credentials and signed URLs
    "aiosqlite",  # whose debug lines hold every row
    "alembic.runtime.plugins",
)
_SAVES: Final = "chockstone.checkpoints.saving.job"  # the engine logs each save, with its run and name
log = logging.getLogger(__name__)


class TextFormatter(logging.Formatter):
    def __init__(self) -> None:
        super().__init__(_TEXT)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # as logging calls it
        line = super().formatMessage(record)
        request_id = current_request_id()
        if request_id is None:
            return line
        first, break_, rest = line.partition("\n")  # the id is on the first line, which has the time
        return f"{first} x_request_id={request_id}{break_}{rest}"

    def format(self, record: logging.LogRecord) -> str:
        """With a stack trace, if the record has one."""
        return _CONTINUED.join(_printable(line) for line in _cut(super().format(record)).split("\n"))


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        written: dict[str, Any] = {  # Any: plain JSON
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": _cut(record.getMessage()),
            "process": record.process,
        }
        if (request_id := current_request_id()) is not None:
            written["x_request_id"] = request_id
        if fields := fields_of(record):
            written["fields"] = fields
        if record.exc_info:
            written["exception"] = _cut(self.formatException(record.exc_info))
        return json.dumps(written, allow_nan=False)


def fields_of(record: logging.LogRecord) -> dict[str, Any]:  # Any: plain JSON
    """The values that fill ``name=%…`` in the record's format string, by name."""
    arguments = record.args
    if not isinstance(record.msg, str) or not isinstance(arguments, tuple):
        return {}
    names = _names_in(record.msg)
    if len(names) != len(arguments):
        return {}
    return {name: _plain(value) for name, value in zip(names, arguments, strict=True) if name}


@lru_cache(maxsize=1024)
def _names_in(template: str) -> Sequence[str | None]:
    """The name before each placeholder; None: it has none. Empty where arguments are not one for each placeholder."""
    names: list[str | None] = []
    for name, key, width, precision, conversion in _PLACEHOLDER.findall(template):
        if conversion == "%":
            continue
        if key or "*" in (width, precision):
            return ()
        names.append(name or None)
    return names


def _plain(value: object) -> str | int | float | bool | None:
    match value:
        case None | bool():
            return value
        case int() if abs(value) < 2**63:
            return value
        case float() if math.isfinite(value):
            return value
    text = str(value)
    return text if len(text) <= _LONGEST_FIELD else f"{text[:_LONGEST_FIELD]}…"


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST_MESSAGE else f"{text[:LONGEST_MESSAGE]}…"


def _printable(line: str) -> str:
    """Without terminal commands, line separators other than a line feed, and lone surrogates."""
    if line.isprintable():
        return line
    return "".join(letter if letter.isprintable() or letter == "\t" else " " for letter in line)


def configure_logging(level: str, log_format: LogFormat = "text") -> None:
    """Log to stderr in this process, in this format; also warnings, and errors that end a thread or the process."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler])
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(logging.WARNING)
    if level != "debug":
        logging.getLogger(_SAVES).setLevel(logging.WARNING)
    if log_format == "json":
        logging.captureWarnings(True)
        sys.excepthook = _log_uncaught
        threading.excepthook = _log_end_of_thread


def _log_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        traceback.print_exception(kind, error, trace)
        return
    log.critical("the process ends with an error", exc_info=(kind, error, trace))


def _log_end_of_thread(ended: threading.ExceptHookArgs) -> None:
    name = "" if ended.thread is None else ended.thread.name
    error = ended.exc_value or ended.exc_type()
    log.error("thread ended with an error thread=%s", name, exc_info=(ended.exc_type, error, ended.exc_traceback))
