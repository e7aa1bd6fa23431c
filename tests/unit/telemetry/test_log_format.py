from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from chockstone.checkpoints.saving import job
from chockstone.telemetry.log_format import LONGEST_MESSAGE, JsonFormatter, TextFormatter, configure_logging, fields_of
from chockstone.telemetry.origin import working_for

HOSTILE = 'x\n2026-01-01 00:00:00,000 ERROR chockstone forged\r\x1b[31m\u2028\x85\udc80\x00"}'


class Lines:
    """A logger whose lines are kept."""

    def __init__(self, formatter: logging.Formatter) -> None:
        self._stream = io.StringIO()
        handler = logging.StreamHandler(self._stream)
        handler.setFormatter(formatter)
        self.log = logging.Logger("chockstone.test")
        self.log.addHandler(handler)

    @property
    def lines(self) -> list[str]:
        return self._stream.getvalue().split("\n")[:-1]

    def objects(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines]


@pytest.fixture
def text() -> Lines:
    return Lines(TextFormatter())


@pytest.fixture
def as_json() -> Lines:
    return Lines(JsonFormatter())


def test_a_line_of_text_has_time_level_logger_message_and_the_id_of_the_request(text: Lines) -> None:
    with working_for("r-1"):
        text.log.info("run opened run=%s rank=%d", "s:train:0", 8)
    text.log.info("worker ready")

    first, second = text.lines
    assert first.endswith(" INFO chockstone.test run opened run=s:train:0 rank=8 x_request_id=r-1")
    assert second.endswith(" INFO chockstone.test worker ready")


def test_further_lines_of_a_text_are_indented_so_that_none_can_be_forged(text: Lines) -> None:
    with working_for("r-1"):
        text.log.warning("request failed reason=%s", HOSTILE)
    try:
        raise ValueError(HOSTILE)
    except ValueError:
        text.log.exception("operation failed")

    lines = text.lines
    assert lines[0].endswith("request failed reason=x x_request_id=r-1")
    assert [line for line in lines if not line.startswith("    ")] == [lines[0], lines[2]]
    assert "\x1b" not in "".join(lines) and "\r" not in "".join(lines) and "\u2028" not in "".join(lines)
    assert any("Traceback" in line for line in lines)


def test_json_is_one_object_per_line_with_the_values_as_fields(as_json: Lines) -> None:
    with working_for("r-1"):
        as_json.log.info("run opened run=%s rank=%d seconds=%.3f from=%r in %s", "s:train:0", 8, 0.25, None, "time")

    [line] = as_json.objects()
    assert line["time"].endswith("+00:00")
    assert (line["level"], line["logger"]) == ("INFO", "chockstone.test")
    assert line["message"] == "run opened run=s:train:0 rank=8 seconds=0.250 from=None in time"
    assert line["fields"] == {"run": "s:train:0", "rank": 8, "seconds": 0.25, "from": None}
    assert line["x_request_id"] == "r-1"


def test_no_value_breaks_a_line_of_json_or_adds_a_field(as_json: Lines) -> None:
    as_json.log.warning("request failed owner=%s reason=%s", "ann", f"{HOSTILE} owner=root")
    as_json.log.warning("too much bytes=%d ratio=%f text=%s", 2**80, float("nan"), "y" * 100_000)
    try:
        raise ValueError(HOSTILE)
    except ValueError:
        as_json.log.exception("operation failed")

    failed, much, broken = as_json.objects()
    assert failed["fields"] == {"owner": "ann", "reason": f"{HOSTILE} owner=root"}
    assert much["fields"]["bytes"] == str(2**80) and much["fields"]["ratio"] == "nan"
    assert len(much["message"]) <= LONGEST_MESSAGE + 1 and len(much["fields"]["text"]) < 5000
    assert "ValueError" in broken["exception"]
    assert all(line.isascii() for line in as_json.lines)


@pytest.mark.parametrize(
    ("template", "arguments", "fields"),
    [
        ("plain", (), {}),
        ("100%% done=%d", (1,), {"done": 1}),
        ("wide=%*d", (5, 1), {}),
        ("named=%(name)s", ({"name": "x"},), {}),
        ("a=%s b=%s", (b"x", True), {"a": "b'x'", "b": True}),
        ("error=%s", (ValueError("no"),), {"error": "no"}),
    ],
)
def test_fields_are_found_in_the_format_string(
    template: str, arguments: tuple[object, ...], fields: dict[str, object]
) -> None:
    record = logging.LogRecord("x", logging.INFO, "", 0, template, arguments, None)

    assert fields_of(record) == fields


@pytest.fixture
def levels() -> Iterator[None]:
    names = ("", "botocore", "boto3", "urllib3", "alembic.runtime.plugins", job.__name__)
    loggers = [logging.getLogger(name) for name in names]
    before = [logger.level for logger in loggers]
    yield
    for logger, level in zip(loggers, before, strict=True):
        logger.setLevel(level)


@pytest.mark.usefixtures("levels")
def test_libraries_whose_debug_lines_hold_credentials_stay_quiet() -> None:
    configure_logging("debug")

    assert logging.getLogger("botocore").getEffectiveLevel() == logging.WARNING
    assert logging.getLogger("urllib3").getEffectiveLevel() == logging.WARNING


@pytest.mark.usefixtures("levels")
def test_the_line_of_the_library_for_each_save_is_left_to_the_engine() -> None:
    configure_logging("info")

    assert not job.log.isEnabledFor(logging.INFO)


PROGRAM = """
import logging, threading, warnings
from chockstone.telemetry.log_format import configure_logging
configure_logging("info", "json")
logging.getLogger("uvicorn.error").info("Started server process [%d]", 7)
warnings.warn("old")
thread = threading.Thread(target=lambda: 1 / 0, name="journal")
thread.start()
thread.join()
raise SystemError("all is lost")
"""


def test_a_process_logs_warnings_and_what_ends_it_as_json_too() -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)

    lines = [json.loads(line) for line in ended.stderr.splitlines()]

    assert ended.returncode == 1
    assert [(line["logger"], line["level"]) for line in lines] == [
        ("uvicorn.error", "INFO"),
        ("py.warnings", "WARNING"),
        ("chockstone.telemetry.log_format", "ERROR"),
        ("chockstone.telemetry.log_format", "CRITICAL"),
    ]
    assert lines[2]["fields"] == {"thread": "journal"}
    assert "all is lost" in lines[3]["exception"]
